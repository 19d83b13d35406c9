// @ts-check
// SPDX-License-Identifier: Apache-2.0
// Copyright The nkilib authors
// The page of a profile: timeline, memory, source and table. Times are picoseconds. Texts of a kernel only ever become
// textContent. Everything that is shown comes from `content.py`, whose names the content has here.
"use strict";
/** @typedef {{label: string, core: number, kind: string, rows: Int32Array[], y: number, row: number}} Lane */

const US = 1e6;
// Hues of Okabe and Ito, which colour-blind readers tell apart, each with the colour of text on it.
const HUES = [["#0072b2", "#fff"], ["#e69f00", "#000"], ["#009e73", "#000"], ["#cc79a7", "#000"], ["#56b4e9", "#000"],
  ["#d55e00", "#000"], ["#f0e442", "#000"], ["#5c6370", "#fff"]];
const ENGINES = ["tensor", "vector", "scalar", "gpsimd", "sync", "dma"];
const WAITED = {
  nothing: "nothing", engine: "its engine, which ran others", data: "data that it reads",
  reuse: "others that still used what it overwrites", trigger: "its queue, which triggers one transfer after another",
  meeting: "the other core, at a barrier or an exchange", loop: "a loop of the device, at which all engines wait",
};
const MOST_ROWS = 12, MOST_CHAIN = 500, MOST_LISTED = 25, MOST_IN_TABLE = 200, MOST_IN_LEGEND = 12;
const RULER = 20, GAP = 5, LETTER = 7.2, SLOW = 8;
const at = id => /** @type {any} */ (document.getElementById(id));
/** @param {number} ps @param {number} [digits] @param {number} [least] */
const us = (ps, digits = 3, least = 1) =>
  (ps / US).toLocaleString("en", {minimumFractionDigits: least, maximumFractionDigits: digits});
const whole = count => count.toLocaleString("en");

/** Make an element. @param {string} tag @param {Object<string, any>} [set] @param {(Node|string)[]} children */
function make(tag, set = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(set))
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A button in the form of a link. @param {string} text @param {() => void} act */
const link = (text, act) => make("button", {type: "button", class: "to", onclick: act}, text);

/** A table; the columns at `figures` are figures.
 * @param {string[]} heads @param {number[]} figures @param {Node} body */
function table(heads, figures, body) {
  const cells = heads.map((head, at) => make("th", {scope: "col", class: figures.includes(at) ? "figure" : ""}, head));
  return make("table", {}, make("thead", {}, make("tr", {}, ...cells)), body);
}

/** The first position of a sorted sequence whose value, by `of`, is over a limit.
 * @param {number} count @param {(at: number) => number} of @param {number} limit */
function firstOver(count, of, limit) {
  let low = 0;
  for (let high = count; low < high;) {
    const middle = (low + high) >> 1;
    if (of(middle) > limit) high = middle; else low = middle + 1;
  }
  return low;
}

async function decoded(text) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function summed(differences) {
  let total = 0;
  return Float64Array.from(differences, difference => total += difference);
}

/** The instructions of a profile, column by column over all cores, and what is known of them. */
class Profile {
  /** @param {any} content @param {number} index */
  constructor(content, index) {
    this.content = content;
    this.index = index;
    const sizes = content.cores.map(core => core.site.length);
    this.count = sizes.reduce((sum, size) => sum + size, 0);
    this.first = sizes.map((_, at) => sizes.slice(0, at).reduce((sum, size) => sum + size, 0));
    this.core = new Uint8Array(this.count);  // the position among the cores, not the number
    this.site = new Int32Array(this.count);
    this.number = new Float64Array(this.count);
    this.start = new Float64Array(this.count);
    this.end = new Float64Array(this.count);
    this.waited = new Uint8Array(this.count);
    this.on = new Float64Array(this.count);
    this.path = new Float64Array(this.count);  // its time on the critical path
    this.y = new Float64Array(this.count);  // the middle of its row in the timeline
    this.marked = new Uint8Array(this.count);
    this.marks = 0;
    /** @type {number[]} */ this.chain = [];
    content.cores.forEach((core, at) => {
      const first = this.first[at], start = summed(core.start);
      this.core.fill(at, first, first + sizes[at]);
      this.site.set(core.site, first);
      this.number.set(summed(core.number), first);
      this.start.set(start, first);
      this.end.set(start.map((time, index) => time + core.duration[index]), first);
      this.waited.set(core.waited, first);
      this.on.set(core.on, first);
    });
    this.name = content.sites.map(site => site[2] ? `${site[1]} ${site[2]}` : site[1]);
    /** @type {number[]} */ this.hue = [];
    /** @type {Int32Array | null} */ this.order = null;
    this.links = this.linked();
    this.lanes = this.laned();
    this.height = RULER + this.lanes.reduce((sum, lane) => sum + lane.row * lane.rows.length + GAP, 0);
    this.meetings = new Map(content.meetings.map(m => [`${m[0]}:${m[1]}`, [m[2], m[3]]]));
    this.makers = new Set(content.tiles.kinds.map(kind => `${kind[3]}:${kind[4]}`));  // lines that make tiles
    this.sums = new Map(content.lines.map(line => [`${line[0]}:${line[1]}`, line]));
  }

  /** The links of the critical path, with the index of their instruction. */
  linked() {
    const {core, kind, kinds, duration} = this.content.path;
    const number = summed(this.content.path.number), start = summed(this.content.path.start);
    return core.map((own, at) => {
      const item = this.find(own, number[at]);
      if (item >= 0) this.path[item] += duration[at];
      return {item, kind: kinds[kind[at]], from: start[at], to: start[at] + duration[at]};
    });
  }

  /** The index of an instruction; -1 if it is not shown. @param {number} core @param {number} number */
  find(core, number) {
    const at = this.content.cores.findIndex(one => one.core === core), first = this.first[at];
    const size = this.content.cores[at].site.length;
    const found = first + firstOver(size, index => this.number[first + index], number - 0.5);
    return found < first + size && this.number[found] === number ? found : -1;
  }

  /** The lanes: of each core the engines, and the queues with a row for each transfer in flight. @returns {Lane[]} */
  laned() {
    /** @type {Map<string, number[]>} */ const groups = new Map();
    for (let i = 0; i < this.count; i++) {
      const site = this.content.sites[this.site[i]], order = ENGINES.indexOf(site[0]);
      const key = [this.core[i], order, site[0], site[7]].join("\0"), group = groups.get(key);
      if (group) group.push(i); else groups.set(key, [i]);
    }
    const lanes = [...groups].sort(([one], [other]) => one < other ? -1 : 1).map(([key, items]) => {
      const [core, , engine, queue] = key.split("\0"), rows = this.rows(items);
      const number = this.content.cores[+core].core;
      const label = `core ${number} ${queue ? `dma ${queue.replace(/^dma$/, "")}`.trim() : engine}`;
      const row = queue ? (rows.length > 3 ? 7 : 12) : 20;
      return {label, core: +core, kind: engine, rows, y: 0, row};
    });
    const path = {label: "critical path", core: -1, kind: "path", rows: [new Int32Array(0)], y: 0, row: 14};
    const all = [path, ...lanes];
    this.content.cores.forEach((core, at) => {
      const depths = this.content.loops.filter(loop => loop[0] === core.core).map(loop => loop[4]);
      const rows = Array.from({length: Math.max(-1, ...depths) + 1}, () => new Int32Array(0));
      const lane = {label: `core ${core.core} loops`, core: at, kind: "loops", rows, y: 0, row: 13};
      if (rows.length) all.splice(all.findIndex(one => one.core === at), 0, lane);
    });
    let y = RULER;
    for (const lane of all) {
      [lane.y, y] = [y, y + lane.row * lane.rows.length + GAP];
      lane.rows.forEach((row, at) => { for (const i of row) this.y[i] = lane.y + (at + 0.5) * lane.row; });
    }
    return all;
  }

  /** Rows in which instructions do not overlap, 12 at most. @param {number[]} items @returns {Int32Array[]} */
  rows(items) {
    items.sort((one, other) => this.start[one] - this.start[other] || one - other);
    /** @type {number[][]} */ const rows = [];
    /** @type {number[]} */ const ends = [];
    for (const i of items) {
      let row = ends.findIndex(end => end <= this.start[i] + 1000);
      if (row < 0) row = rows.length < MOST_ROWS ? rows.push([]) - 1 : ends.indexOf(Math.min(...ends));
      rows[row].push(i);
      ends[row] = Math.max(ends[row] || 0, this.end[i]);
    }
    return rows.map(row => Int32Array.from(row));
  }

  /** Name and line of an instruction. @param {number} i */
  what(i) { return `${this.name[this.site[i]]} at ${this.line(i)}`; }
  line(i) { const site = this.content.sites[this.site[i]]; return this.lineText(site[3], site[4]); }
  lineText(file, line) { return `${this.content.files[file].name}:${line}`; }

  /** The instruction that delayed another one; -1 if none did, or it is not shown. @param {number} i */
  cause(i) {
    const core = this.content.cores[this.core[i]].core;
    if (this.on[i]) return this.find(core, this.number[i] - this.on[i]);
    const waited = this.content.waited[this.waited[i]], first = this.first[this.core[i]];
    const met = this.meetings.get(`${core}:${this.number[i]}`);
    if (waited === "meeting" && met) return this.find(met[0], met[1]);
    let latest = waited === "loop" ? i - 1 : -1;  // all engines waited, for the one that ended last
    for (let other = latest; other >= first; other--) if (this.end[other] > this.end[latest]) latest = other;
    return latest < first ? -1 : latest;
  }

  /** The instructions that an instruction waited for, one after the other. @param {number} i */
  waitedFor(i) {
    const chain = [i];
    for (let next = this.cause(i); next >= 0 && chain.length < MOST_CHAIN; next = this.cause(next)) {
      if (next === chain[chain.length - 1]) break;
      chain.push(next);
    }
    return chain;
  }

  /** All instructions in the order in which they start. */
  inOrder() {
    const by = this.start;
    return this.order ||= Int32Array.from(this.core.keys()).sort((one, other) => by[one] - by[other]);
  }

  /** Mark the instructions of the sites that fit. @param {((site: any) => boolean) | null} fits */
  mark(fits) {
    const fitting = this.content.sites.map(site => fits !== null && fits(site) ? 1 : 0);
    this.marks = 0;
    for (let i = 0; i < this.count; i++) this.marks += this.marked[i] = fitting[this.site[i]];
  }
}

/** The times that all pictures show. */
const axis = {
  from: 0, to: 1, end: 1,
  /** @param {number} from @param {number} to */
  show(from, to) {
    const length = Math.min(this.end, Math.max(100, to - from));
    this.from = Math.max(-0.02 * length, Math.min(from, this.end + 0.02 * length - length));
    this.to = this.from + length;
    redraw();
  },
  zoom(factor, about) { this.show(about - (about - this.from) * factor, about + (this.to - about) * factor); },
  pan(share) { this.show(this.from + share * (this.to - this.from), this.to + share * (this.to - this.from)); },
};

/** @type {Profile[]} */ let profiles = [];
/** @type {Picture[]} */ let pictures = [];
/** @type {{p: Profile, i: number} | null} */ let selected = null;
let isAlone = false, isMarking = false, isAsked = false;
/** @type {Set<string>} */ const held = new Set();  // keys
/** @type {Object<string, string>} */ let colours = {};

/** Draw everything once before the next frame, however often this is called. */
function redraw() {
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    for (const picture of pictures) picture.refresh();
    fillTable.later();
  });
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "muted", "paper", "box", "edge", "chain", "dim"];
  colours = Object.fromEntries(names.map(name => [name, style.getPropertyValue(`--${name}`).trim()]));
  redraw();
}

/** A canvas over the axis: what the timeline and the memory have in common. */
class Picture {
  /** @param {Profile} p @param {HTMLElement} parent @param {string} label */
  constructor(p, parent, label) {
    this.p = p;
    const canvas = make("canvas", {tabindex: "0", role: "application", "aria-label": label});
    this.canvas = /** @type {HTMLCanvasElement} */ (canvas);
    this.g = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.width = this.height = this.left = this.cost = this.drawn = this.timer = 0;
    this.last = {image: document.createElement("canvas"), from: 0, to: 1};
    /** @type {Map<number, PointerEvent>} */ this.pointers = new Map();
    this.moved = 0;
    parent.append(this.canvas);
    const listen = (/** @type {string} */ name, /** @type {(event: any) => void} */ act) =>
      this.canvas.addEventListener(name, act, {passive: false});
    listen("wheel", event => this.wheel(event));
    listen("pointerdown", event => this.down(event));
    listen("pointermove", event => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) listen(name, event => this.up(event));
    listen("pointerleave", () => { if (!this.pointers.size) at("tip").hidden = true; });
  }

  /** Draw. What takes long moves its last drawing instead, and draws now and then, and when nothing changes. */
  refresh(isAtRest = false) {
    const {image, from, to} = this.last, begun = performance.now(), {width} = this.canvas;
    clearTimeout(this.timer);
    if (!isAtRest && this.cost > SLOW && image.width === width && begun - this.drawn < Math.max(250, 20 * this.cost)) {
      this.begin();
      this.g.drawImage(image, this.x(from), 0, this.x(to) - this.x(from), this.height);
      this.labels();
      return void (this.timer = setTimeout(() => this.refresh(true), 150));
    }
    this.draw();
    this.drawn = performance.now();
    this.cost = this.drawn - begun;
    [image.width, image.height] = [this.canvas.width, this.canvas.height];
    const left = this.left * image.width / this.width;
    this.last = {image, from: axis.from, to: axis.to};
    const wide = image.width - left, high = image.height;
    if (this.cost > SLOW) image.getContext("2d")?.drawImage(this.canvas, left, 0, wide, high, 0, 0, wide + left, high);
  }

  get scale() { return (this.width - this.left) / (axis.to - axis.from); }
  x(time) { return this.left + (time - axis.from) * this.scale; }
  time(x) { return axis.from + (x - this.left) / this.scale; }

  /** Give the canvas its size, clear it, and draw the ruler. */
  begin() {
    const width = this.canvas.parentElement ? this.canvas.parentElement.clientWidth : 300, height = this.wanted;
    const ratio = window.devicePixelRatio || 1;
    if (width !== this.width || height !== this.height || this.canvas.width !== Math.round(width * ratio)) {
      [this.width, this.height, this.left] = [width, height, width < 600 ? 70 : 120];
      [this.canvas.width, this.canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
      this.canvas.style.height = `${height}px`;
    }
    this.g.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.g.fillStyle = colours.paper;
    this.g.fillRect(0, 0, width, height);
    [this.g.font, this.g.textBaseline] = ["11px system-ui, sans-serif", "middle"];
    this.ruler();
  }

  /** The times at the top, with lines down to the bottom. */
  ruler() {
    const g = this.g, span = axis.to - axis.from, rough = span / Math.max(2, (this.width - this.left) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= rough) || rough;
    const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step / US) + 1e-9)));
    g.fillStyle = colours.muted; g.strokeStyle = colours.edge; g.lineWidth = 1;
    g.beginPath();
    for (let time = Math.ceil(axis.from / step) * step; time <= axis.to; time += step) {
      const x = Math.round(this.x(time)) + 0.5;
      g.moveTo(x, RULER - 4); g.lineTo(x, this.height);
      const text = `${us(time, digits, digits)} us`;
      if (x + 3 + g.measureText(text).width <= this.width) g.fillText(text, x + 3, 8);
    }
    g.stroke();
  }
  label(text, y) {
    const fits = Math.floor((this.left - 4) / 5.6);
    if (this.left < 100) text = text.replace(/^core /, "");
    this.g.fillStyle = colours.paper; this.g.fillRect(0, y - 6, this.left, 12);
    this.g.fillStyle = colours.ink;
    this.g.fillText(text.length > fits ? text.slice(0, fits - 1) + "…" : text, 2, y);
  }

  /** Write as much of a text as there is room for.
   * @param {string} text @param {number} from @param {number} to @param {number} y */
  write(text, from, to, y) {
    const x = Math.max(from, this.left) + 3, fits = Math.floor((Math.min(to, this.width) - x) / LETTER);
    if (fits > 3) this.g.fillText(text.slice(0, fits), x, y);
  }

  // What the pictures themselves do.
  get wanted() { return 0; } draw() {} labels() {} choose(_found) {} tell(_found) { return ""; }
  hit(_x, _y) { return /** @type {any} */ (null); }
  /** @param {WheelEvent} event */
  wheel(event) {
    event.preventDefault();
    const unit = event.deltaMode ? 33 : 1, x = event.deltaX * unit, y = event.deltaY * unit;
    if (event.shiftKey || Math.abs(x) > Math.abs(y)) axis.pan((x || y) / this.width);
    else axis.zoom(Math.exp(y * 0.002), this.time(event.offsetX));
  }
  /** @param {PointerEvent} event */
  down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event); this.moved = 0;
    this.canvas.focus({preventScroll: true});
  }
  /** @param {PointerEvent} event */
  move(event) {
    const last = this.pointers.get(event.pointerId);
    if (!last) {
      const found = this.hit(event.offsetX, event.offsetY), tip = at("tip");
      tip.hidden = found === null;
      if (found !== null) {
        tip.textContent = this.tell(found);
        const right = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4));
        const below = event.clientY + 18 + tip.offsetHeight < innerHeight;
        tip.style.left = `${right}px`;
        tip.style.top = `${below ? event.clientY + 18 : Math.max(0, event.clientY - tip.offsetHeight - 10)}px`;
      }
      return;
    }
    at("tip").hidden = true;
    this.moved += Math.abs(event.offsetX - last.offsetX) + Math.abs(event.offsetY - last.offsetY);
    if (this.pointers.size > 1) {
      const [other] = [...this.pointers.values()].filter(one => one.pointerId !== event.pointerId);
      const before = Math.abs(last.offsetX - other.offsetX), after = Math.abs(event.offsetX - other.offsetX);
      if (before > 8 && after > 8) axis.zoom(before / after, this.time((event.offsetX + other.offsetX) / 2));
    } else if (this.moved > 4) {
      const by = (last.offsetX - event.offsetX) / this.scale;
      axis.show(axis.from + by, axis.to + by);
    }
    this.pointers.set(event.pointerId, event);
  }
  /** @param {PointerEvent} event */
  up(event) {
    const was = this.pointers.delete(event.pointerId);
    if (was && event.type === "pointerup" && this.moved <= 4 && !this.pointers.size)
      this.choose(this.hit(event.offsetX, event.offsetY));
  }
}

/** The engines and queues over time. */
class Timeline extends Picture {
  get wanted() { return this.p.height; }

  draw() {
    this.begin();
    const g = this.g, p = this.p;
    g.save();
    g.beginPath(); g.rect(this.left, 0, this.width - this.left, this.height); g.clip();
    for (const lane of p.lanes) {
      if (lane.kind === "path") this.path(lane);
      else if (lane.kind === "loops") this.loops(lane);
      else lane.rows.forEach((row, at) => this.row(row, lane.y + at * lane.row, lane.row - 1));
    }
    this.gaps();
    this.chain();
    g.restore();
    this.labels();
  }
  labels() { for (const lane of this.p.lanes) this.label(lane.label, lane.y + lane.row * lane.rows.length / 2); }
  isDim(i) { return isAlone ? !this.p.path[i] : isMarking && !this.p.marked[i]; }
  /** @param {Int32Array} row @param {number} y @param {number} height */
  row(row, y, height) {
    const g = this.g, {start, end, site, hue, name} = this.p, scale = this.scale, left = this.left - axis.from * scale;
    let pixel = -1, cover = 0, longest = -1, fill = -1, dim = true, begin = 0, stop = 0, look = 0;
    const paint = () => {  // the run of pixels that look the same
      g.globalAlpha = (look & 15) / 10;
      g.fillStyle = look >> 4 < HUES.length ? HUES[look >> 4][0] : colours.dim;
      g.fillRect(begin, y, stop - begin, height);
      g.globalAlpha = 1; begin = stop;
    };
    const flush = () => {
      if (pixel < 0 || (isAlone && dim)) return;
      const own = (dim ? HUES.length : fill) << 4 | Math.round(10 * Math.min(1, 0.35 + 0.65 * cover));
      if (own !== look || pixel !== stop) { paint(); [begin, look] = [pixel, own]; }
      stop = pixel + 1;
    };
    for (let at = firstOver(row.length, at => end[row[at]], axis.from); at < row.length; at++) {
      const i = row[at];
      if (start[i] > axis.to) break;
      const x = left + start[i] * scale, width = (end[i] - start[i]) * scale, isDim = this.isDim(i);
      if (width >= 1) {
        flush(); pixel = -1;
        if (isAlone && isDim) continue;
        g.fillStyle = isDim ? colours.dim : HUES[hue[site[i]]][0];
        const from = Math.max(Math.floor(x), -9), wide = Math.min(Math.floor(x + width), this.width + 9) - from;
        g.fillRect(from, y, Math.max(1, wide > 3 ? wide - 1 : wide), height);
        g.fillStyle = isDim ? colours.muted : HUES[hue[site[i]]][1];
        if (height > 10 && width > 25) this.write(name[site[i]], x, x + width, y + height / 2);
        continue;
      }
      const own = Math.floor(x);
      if (own !== pixel) { flush(); pixel = own; cover = 0; longest = -1; dim = true; }
      cover += width;
      if ((dim && !isDim) || (dim === isDim && width > longest)) { longest = width; fill = hue[site[i]]; dim = isDim; }
    }
    flush(); paint();
  }
  /** @param {Lane} lane */
  path(lane) {
    const g = this.g, links = this.p.links;
    let last = -1;
    for (let at = firstOver(links.length, at => links[at].to, axis.from); at < links.length; at++) {
      const {kind, item} = links[at], from = this.x(links[at].from), to = this.x(links[at].to);
      if (from > this.width) break;
      if (to - from < 1 && Math.floor(from) === last) continue;
      last = Math.floor(from);
      const isWork = item >= 0 && (kind === "work" || kind === "moving rows");
      const [fill, ink] = isWork ? HUES[this.p.hue[this.p.site[item]]] : [colours.edge, colours.ink];
      g.fillStyle = fill;
      g.fillRect(from, lane.y, Math.max(1, to - from - (to - from > 3 ? 0.7 : 0)), lane.row);
      g.fillStyle = ink;
      if (to - from > 25) this.write(kind, from, to, lane.y + lane.row / 2);
    }
  }
  loopText(loop) {
    const [, what, file, line, , , , count, left] = loop;
    const skipped = left ? `; ${whole(left)} of them were not run, because they repeat others` : "";
    return `${what} at ${this.p.lineText(file, line)}: ${whole(count)} iterations on the device${skipped}`;
  }
  /** @param {Lane} lane */
  loops(lane) {
    const g = this.g, core = this.p.content.cores[lane.core].core;
    for (const loop of this.p.content.loops) {
      if (loop[0] !== core || loop[6] < axis.from || loop[5] > axis.to) continue;
      const from = Math.max(this.x(loop[5]), this.left - 4), to = Math.min(this.x(loop[6]), this.width + 4);
      const y = lane.y + loop[4] * lane.row;
      g.fillStyle = colours.box; g.strokeStyle = colours.muted;
      g.fillRect(from, y, Math.max(1, to - from), lane.row - 2);
      g.strokeRect(from + 0.5, y + 0.5, Math.max(1, to - from - 1), lane.row - 3);
      g.fillStyle = colours.ink;
      this.write(this.loopText(loop), from, to, y + lane.row / 2 - 1);
    }
  }

  /** What is left out of a long launch. */
  gaps() {
    this.p.content.cores.forEach((core, at) => {
      const lanes = this.p.lanes.filter(lane => lane.core === at);
      if (!core.gap || !lanes.length) return;
      const [, count, from, to] = core.gap, top = lanes[0].y, end = lanes[lanes.length - 1];
      const x = this.x(from), width = Math.max(2, this.x(to) - x);
      this.g.fillStyle = colours.box; this.g.globalAlpha = 0.6;
      this.g.fillRect(x, top, width, end.y + end.row * end.rows.length - top);
      this.g.fillStyle = colours.ink; this.g.globalAlpha = 1;
      this.write(`${whole(count)} instructions are left out here; sums count them`, x, x + width, top + 12);
    });
  }

  /** The chain of what the selected instruction waited for. */
  chain() {
    const g = this.g, p = this.p;
    if (!selected || selected.p !== p) return;
    g.strokeStyle = g.fillStyle = colours.chain; g.lineWidth = 1.5;
    for (let at = 0; at + 1 < p.chain.length; at++) {
      const [late, early] = [p.chain[at], p.chain[at + 1]];
      if (p.start[late] < axis.from && p.start[early] < axis.from) break;
      const isTrigger = p.content.waited[p.waited[late]] === "trigger";
      const x = this.x(isTrigger ? p.start[early] : Math.min(p.end[early], p.start[late])), to = this.x(p.start[late]);
      if (x > this.width && to > this.width) continue;
      const y = p.y[early], below = p.y[late], bend = Math.max(8, (to - x) / 2);
      g.beginPath(); g.moveTo(x, y); g.bezierCurveTo(x + bend, y, to - bend, below, to, below); g.stroke();
      g.beginPath(); g.moveTo(to, below); g.lineTo(to - 6, below - 3); g.lineTo(to - 6, below + 3); g.fill();
    }
    g.lineWidth = 2;
    const i = selected.i, y = p.y[i], from = this.x(p.start[i]);
    g.strokeRect(from - 1, y - 9, Math.max(3, this.x(p.end[i]) - from + 2), 18);
  }
  hit(x, y) {
    const lane = this.p.lanes.find(one => y >= one.y && y < one.y + one.row * one.rows.length);
    const time = this.time(x), near = 2 / this.scale;
    if (!lane || x < this.left) return null;
    const at = Math.floor((y - lane.y) / lane.row);
    if (lane.kind === "path") {
      const k = firstOver(this.p.links.length, k => this.p.links[k].to, time);
      return k < this.p.links.length && this.p.links[k].from <= time ? {link: this.p.links[k]} : null;
    }
    if (lane.kind === "loops") {
      const core = this.p.content.cores[lane.core].core;
      const loop = this.p.content.loops.find(l => l[0] === core && l[4] === at && l[5] <= time && time <= l[6]);
      return loop ? {loop} : null;
    }
    const row = lane.rows[at], {start, end} = this.p;
    const k = firstOver(row.length, k => end[row[k]], time - near);
    if (k >= row.length || start[row[k]] > time + near || (isAlone && !this.p.path[row[k]])) return null;
    return {i: row[k]};
  }
  tell(found) {
    if (found.loop) return this.loopText(found.loop);
    if (found.link) {
      const {item, kind, from, to} = found.link, what = item < 0 ? "" : ` of ${this.p.what(item)}`;
      return `critical path, ${us(to - from)} us: ${kind}${what}`;
    }
    return told(facts(this.p, found.i));
  }
  choose(found) {
    if (!found) clear();
    else if (found.i !== undefined) select(this.p, found.i);
    else if (found.link && found.link.item >= 0) select(this.p, found.link.item);
    else if (found.loop) selectLine(this.p, found.loop[2], found.loop[3]);
  }

  /** Select with the keyboard: the instruction before or after on its lane, or on the lane above or below.
   * @param {number} along @param {number} across */
  step(along, across) {
    const p = this.p, lanes = p.lanes.map(lane => Int32Array.from(lane.rows.flatMap(row => [...row]))
      .sort((one, other) => p.start[one] - p.start[other] || one - other)).filter(lane => lane.length);
    if (!lanes.length) return;
    const now = selected && selected.p === p ? selected.i : -1;
    const inView = firstOver(lanes[0].length, k => p.end[lanes[0][k]], axis.from);
    if (now < 0) return select(p, lanes[0][Math.min(lanes[0].length - 1, inView)], true);
    const items = lanes[lanes.findIndex(items => items.includes(now)) + across];
    const near = items && across ? Math.max(0, firstOver(items.length, k => p.start[items[k]], p.start[now]) - 1) : 0;
    const next = items && items[across ? near : items.indexOf(now) + along];
    if (next !== undefined) select(p, next, true);
  }
}

/** SBUF and PSUM over time, a block for each tile; a band for each core and memory. */
class Memory extends Picture {
  /** @param {Profile} p @param {HTMLElement} parent @param {string} label */
  constructor(p, parent, label) {
    super(p, parent, label);
    const {kinds, kind, duration, unused} = p.content.tiles, starts = summed(p.content.tiles.start);
    const makers = [...new Set(kinds.map(([, , tensor, file, line]) => `${tensor} ${file}:${line}`))];
    /** @type {Map<string, any>} */ const bands = new Map();
    this.tiles = kind.map((own, at) => {
      const [core, region, tensor, file, line, partitions, bytes] = kinds[own], from = starts[at];
      const hue = makers.indexOf(`${tensor} ${file}:${line}`) % HUES.length;
      const to = from + duration[at];
      const tile = {own, hue, region, tensor, file, line, partitions, bytes, from, to, low: -1, unused: []};
      const key = `core ${core} ${region.toUpperCase()}`;
      const band = {key, region, tiles: [], tracks: new Map(), y: 0, height: 0, top: 1, peak: 0, when: 0};
      if (!bands.has(key)) bands.set(key, band);
      bands.get(key).tiles.push(tile);
      return tile;
    });
    for (const [tile, from, length] of unused) this.tiles[tile].unused.push([this.tiles[tile].from + from, length]);
    this.bands = [...bands.keys()].sort().map(key => bands.get(key));
    for (const band of this.bands) this.pack(band);
  }
  room(band) { return band.region === "sbuf" ? 190 : 110; }
  get wanted() { return RULER + (this.bands || []).reduce((sum, band) => sum + this.room(band), 0); }

  /** Stack the tiles of a band: each at the lowest place that is free for all of its life. @param {any} band */
  pack(band) {
    band.tiles.sort((one, other) => one.from - other.from || other.to - one.to);
    const ends = [...band.tiles].sort((one, other) => one.to - other.to), gaps = [[0, Infinity]];
    let use = 0, ended = 0;
    for (const tile of band.tiles) {
      for (; ends[ended].to <= tile.from && ends[ended].low >= 0; ended++) {
        const {low, bytes} = ends[ended], at = firstOver(gaps.length, at => gaps[at][0], low);
        gaps.splice(at, 0, [low, low + bytes]);
        if (gaps[at + 1][0] === low + bytes) gaps[at][1] = gaps.splice(at + 1, 1)[0][1];
        if (at && gaps[at - 1][1] === low) gaps[at - 1][1] = gaps.splice(at, 1)[0][1];
        use -= bytes;
      }
      const gap = gaps.find(([low, high]) => high - low >= tile.bytes) || gaps[0];
      tile.low = gap[0];
      gap[0] += tile.bytes;
      if (gap[0] === gap[1]) gaps.splice(gaps.indexOf(gap), 1);
      if (!band.tracks.has(tile.low)) band.tracks.set(tile.low, []);
      band.tracks.get(tile.low).push(tile);
      use += tile.bytes;
      if (use > band.peak) [band.peak, band.when] = [use, tile.from];
      band.top = Math.max(band.top, tile.low + tile.bytes);
    }
  }

  draw() {
    this.begin();
    let y = RULER;
    for (const band of this.bands) {
      [band.y, band.height] = [y + 20, this.room(band) - 26];
      this.band(band);
      y += this.room(band);
    }
    this.labels();
  }
  labels() { for (const band of this.bands) this.label(band.key, band.y + band.height / 2); }
  yOf(band, bytes) {
    const capacity = this.p.content[band.region].capacity;
    const top = at("capacity").checked ? Math.max(capacity, band.top) : band.top * 1.05;
    return band.y + band.height * (1 - bytes / top);
  }
  band(band) {
    const g = this.g, capacity = this.p.content[band.region].capacity;
    g.save();
    g.beginPath(); g.rect(this.left, band.y - 20, this.width - this.left, band.height + 26); g.clip();
    for (const track of band.tracks.values()) {
      let tile = null, isNarrow = false, begin = 0, stop = 0;  // a tile, or a run of narrow ones that look the same
      for (let at = firstOver(track.length, at => track[at].to, axis.from); at < track.length; at++) {
        const from = Math.max(this.x(track[at].from), this.left - 2);
        const to = Math.min(this.x(track[at].to), this.width + 2);
        if (from > this.width) break;
        const isSame = isNarrow && to - from < 3 && tile.own === track[at].own && from - stop < 1;
        if (tile && !isSame) this.tile(band, tile, begin, stop);
        if (!isSame) [tile, begin, isNarrow] = [track[at], from, to - from < 3];
        stop = to;
      }
      if (tile) this.tile(band, tile, begin, stop);
    }
    g.strokeStyle = colours.ink; g.setLineDash([3, 3]); g.lineWidth = 1;
    const peak = Math.round(this.x(band.when)) + 0.5, limit = this.yOf(band, capacity);
    g.beginPath(); g.moveTo(peak, band.y); g.lineTo(peak, band.y + band.height);
    if (limit > band.y - 4) { g.moveTo(this.left, limit); g.lineTo(this.width, limit); }
    g.stroke(); g.setLineDash([]);
    g.strokeStyle = colours.edge;
    g.strokeRect(this.left, band.y - 0.5, this.width - this.left, band.height);
    const kib = bytes => bytes < 1024 ? `${bytes} B` : `${(bytes / 1024).toFixed(1)} KiB`;
    const most = this.p.content[band.region].bytes, share = `${Math.round(100 * most / capacity)}% of ${kib(capacity)}`;
    const text = `peak ${kib(most)}, ${share}, in program order; here ${kib(band.peak)} at ${us(band.when, 1)} us`;
    g.fillStyle = colours.ink; this.write(text, 0, this.width, band.y - 10);
    g.restore();
  }
  /** @param {any} band @param {any} tile @param {number} from @param {number} to */
  tile(band, tile, from, to) {
    // Whole pixels, which are several times as fast.
    const g = this.g, line = lineSelected, begin = Math.floor(from), wide = Math.round(to - from);
    const top = Math.round(this.yOf(band, tile.low + tile.bytes)), height = Math.round(this.yOf(band, tile.low)) - top;
    const isDim = line !== null && !(line.p === this.p && line.file === tile.file && line.line === tile.line);
    g.fillStyle = isDim ? colours.dim : HUES[tile.hue][0];
    g.fillRect(begin, top, Math.max(1, wide > 3 ? wide - 1 : wide), Math.max(1, height > 3 ? height - 1 : height));
    if ((tile.to - tile.from) * this.scale < 3 || height < 2) return;
    for (const [begin, length] of tile.unused) this.hatch(this.x(begin), top, length * this.scale, height);
    g.fillStyle = isDim ? colours.muted : HUES[tile.hue][1];
    if (wide > 50 && height > 11) this.write(tile.tensor, from, to, top + height / 2);
  }
  hatch(x, y, width, height) {
    const g = this.g, from = Math.max(x, this.left), to = Math.min(x + width, this.width);
    if (to - from < 1) return;
    g.save();
    g.beginPath(); g.rect(from, y, to - from, height); g.clip();
    g.globalAlpha = 0.6; g.fillStyle = colours.paper; g.fillRect(from, y, to - from, height); g.globalAlpha = 1;
    g.strokeStyle = colours.muted; g.lineWidth = 1;
    g.beginPath();
    for (let x = from - height; x < to; x += 6) { g.moveTo(x, y + height); g.lineTo(x + height, y); }
    g.stroke(); g.restore();
  }
  hit(x, y) {
    const band = this.bands.find(one => y >= one.y && y <= one.y + one.height);
    const time = this.time(x), near = 1 / this.scale;
    if (!band || x < this.left) return null;
    return band.tiles.find(tile => tile.from - near <= time && time <= tile.to + near &&
      y >= this.yOf(band, tile.low + tile.bytes) && y < this.yOf(band, tile.low)) || null;
  }
  /** @param {any} tile @returns {[string, string][]} */
  facts(tile) {
    const isKnown = this.p.content.tiles.knows_unused;
    const unused = tile.unused.reduce((sum, [, length]) => sum + length, 0);
    return [["", tile.tensor], ["made at", this.p.lineText(tile.file, tile.line)],
      ["bytes of a partition", whole(tile.bytes)], ["partitions", whole(tile.partitions)],
      ["used from", `${us(tile.from)} to ${us(tile.to)} us`],
      ["holds nothing that is read later", isKnown ? `${us(unused)} us` : "not known: too many instructions"]];
  }
  tell(tile) { return told(this.facts(tile)); }
  choose(tile) {
    if (!tile) return clear();
    selectLine(this.p, tile.file, tile.line);
    detail(listed(this.facts(tile)), excerpt(this.p, tile.file, tile.line));
  }
}

/** What is known of an instruction. @param {Profile} p @param {number} i @returns {[string, string][]} */
function facts(p, i) {
  const [engine, , , file, line, operands, cycles, queue, bytes, rowBytes, dropped] = p.content.sites[p.site[i]];
  const core = p.content.cores[p.core[i]].core, waited = p.content.waited[p.waited[i]], cause = p.cause(i);
  const on = p.on[i] ? `: number ${whole(p.number[i] - p.on[i])}, which is left out` : "";
  const whom = cause >= 0 ? `: ${p.what(cause)}, number ${whole(p.number[cause])}` : on;
  const rows = rowBytes ? `, rows of ${whole(Math.round(rowBytes))} bytes on average` : "";
  /** @type {[string, any][]} */
  const known = [["", `${p.name[p.site[i]]}, number ${whole(p.number[i])}`], ["line", p.lineText(file, line)],
    ["runs on", `core ${core}, ${engine}${queue ? `, queue ${queue}` : ""}`], ["operands", operands],
    ["start", `${us(p.start[i])} us`], ["end", `${us(p.end[i])} us`],
    ["takes", `${us(p.end[i] - p.start[i])} us${cycles ? `, ${whole(cycles)} cycles` : ""}`],
    ["moves", bytes && `${whole(bytes)} bytes${rows}`], ["waited for", (WAITED[waited] || waited) + whom],
    ["critical path", p.path[i] && `${us(p.path[i])} us`],
    ["not run", dropped && `${dropped} found that the device does not run it`],
    ["not timed", p.content.sites[p.site[i]][1] in p.content.untimed && "the time of collectives is not modelled"]];
  return known.filter(([, value]) => value);
}
const told = pairs => pairs.map(([name, value]) => name ? `${name}: ${value}` : value).join("\n");
const listed = pairs => make("dl", {}, ...pairs.flatMap(([name, value]) =>
  [make("dt", {}, name || "what"), make("dd", {}, name ? value : make("strong", {}, value))]));

/** Show something beside the timeline; the focus stays there. @param {(Node|string)[]} children */
function detail(...children) {
  const box = at("details"), hadFocus = box.contains(document.activeElement);
  box.replaceChildren(...children);
  if (hadFocus) box.focus({preventScroll: true});
}

/** A line of the kernel with its neighbours, and a link.
 * @param {Profile} p @param {number} file @param {number} line */
function excerpt(p, file, line) {
  const known = p.content.files[file].parts.flatMap(([first, lines]) => lines.map((text, at) => [first + at, text]));
  const near = known.filter(([number, text]) => Math.abs(number - line) < 3 && text);
  const indent = Math.min(...near.map(([, text]) => text.search(/\S|$/)));
  const shown = near.map(([number, text]) =>
    make(number === line ? "strong" : "span", {}, `${number}  ${text.slice(indent)}\n`));
  return make("div", {}, make("pre", {}, ...shown), link(`${p.lineText(file, line)} in the source`, toSource));
}
/** Bring the selected line of the source into view. */
function toSource() {
  const row = document.querySelector('#files [aria-selected="true"]');
  row?.scrollIntoView({block: "center"});
  row?.querySelector("button")?.focus({preventScroll: true});
}

/** @type {{p: Profile, file: number, line: number} | null} */ let lineSelected = null;

/** Bring a time into view. @param {number} from @param {number} to */
function reveal(from, to) {
  const length = axis.to - axis.from;
  if (to - from > length) axis.show(from, to);
  else if (from < axis.from || to > axis.to) axis.show((from + to - length) / 2, (from + to + length) / 2);
}

/** Select an instruction, and show its facts, its chain and its line.
 * @param {Profile} p @param {number} i @param {boolean} [isFound] */
function select(p, i, isFound = false) {
  selected = {p, i};
  p.chain = p.waitedFor(i);
  const [, , , file, line] = p.content.sites[p.site[i]];
  const chain = p.chain.slice(1, MOST_LISTED + 1).map(other =>
    make("li", {}, link(p.what(other), () => select(p, other, true)), ` ends ${us(p.end[other])} us`));
  const rest = p.chain.length - 1 - chain.length, more = p.chain.length === MOST_CHAIN ? " or more" : "";
  const all = link("all of this line", () => selectLine(p, file, line));
  detail(listed(facts(p, i)), excerpt(p, file, line), all,
    ...chain.length ? [make("p", {}, "The chain of what it waited for:"), make("ol", {}, ...chain)] : [],
    ...rest > 0 ? [make("p", {}, `and ${whole(rest)}${more} before these`)] : []);
  at("status").textContent = `${p.what(i)}, number ${whole(p.number[i])}`;
  if (isFound) reveal(p.start[i], p.end[i]);
  showLine(p, file, line);
  redraw();
}

/** Select a line: its instructions and the tiles that it makes are highlighted.
 * @param {Profile} p @param {number} file @param {number} line */
function selectLine(p, file, line) {
  selected = null;
  at("search").value = "";
  lineSelected = {p, file, line};
  for (const other of profiles) other.mark(site => other === p && site[3] === file && site[4] === line);
  isMarking = true;
  const [, , path, count, bytes, busy] = p.sums.get(`${file}:${line}`) || [0, 0, 0, 0, 0, {}];
  const sums = Object.entries(busy).map(([engine, ps]) => [`${engine} busy`, `${us(ps)} us`]);
  const known = listed([["", p.lineText(file, line)], ["instructions", whole(count)],
    ["critical path", `${us(path)} us`], ["bytes moved", whole(bytes)], ...sums]), first = p.marked.indexOf(1);
  detail(known, excerpt(p, file, line),
    ...first < 0 ? [] : [link("its first instruction", () => select(p, first, true))]);
  at("status").textContent = `${p.marks ? whole(p.marks) + " instructions" : "tiles"} of ${p.lineText(file, line)}`;
  showLine(p, file, line);
  redraw();
}

const unselectLines = () => document.querySelectorAll('#files [aria-selected="true"]').forEach(row =>
  row.setAttribute("aria-selected", "false"));

function clear() {
  selected = lineSelected = null;
  isMarking = false;
  for (const p of profiles) { p.mark(null); p.chain = []; }
  unselectLines();
  at("search").value = at("status").textContent = "";
  detail(make("p", {}, "Point at an instruction, or select one."));
  redraw();
}

/** Mark the instructions whose name or line has the text of the search. */
function search() {
  const text = at("search").value.trim().toLowerCase();
  if (!text) return clear();
  selected = lineSelected = null;
  isMarking = true;
  for (const p of profiles)
    p.mark(site => `${site[1]} ${site[2]} ${p.lineText(site[3], site[4])}`.toLowerCase().includes(text));
  at("status").textContent = `${whole(profiles.reduce((sum, p) => sum + p.marks, 0))} instructions found`;
  redraw();
}

/** Select the marked instruction after the selected one, or before it. @param {number} by */
function nextMarked(by) {
  const found = profiles.flatMap(p => [...p.inOrder()].filter(i => p.marked[i]).map(i => ({p, i})));
  if (!found.length) return;
  const now = found.findIndex(one => selected && one.p === selected.p && one.i === selected.i);
  const next = found[now < 0 ? (by > 0 ? 0 : found.length - 1) : (now + by + found.length) % found.length];
  select(next.p, next.i, true);
}

/** Show a line in the source. @param {Profile} p @param {number} file @param {number} line */
function showLine(p, file, line) {
  const panel = at("files").children[p.index], [choice, box] = panel.querySelectorAll("select, .lines");
  if (+choice.value !== file) { choice.value = String(file); fillSource(p, file); }
  unselectLines();
  const row = panel.querySelector(`tr[data-number="${line}"]`);
  if (!row) return;
  row.setAttribute("aria-selected", "true");
  bring(box, row);
}
/** Bring a row of a table into view. @param {Element} box @param {HTMLElement | null} row */
function bring(box, row) {
  const top = row ? row.offsetTop - box.scrollTop : 40;
  if (top < 40 || top > box.clientHeight - 40) box.scrollTop += top - box.clientHeight / 2;
}

/** Fill the table of a file with its lines. @param {Profile} p @param {number} file */
function fillSource(p, file) {
  const body = make("tbody"), {parts, size} = p.content.files[file];
  const used = p.content.lines.filter(line => line[0] === file).map(line => line[1]).sort((one, other) => one - other);
  const most = Math.max(1, ...p.content.lines.map(line => line[2]));
  let last = 0, hot = [0, 0, -1];
  const skip = (first, end) => first < end && body.append(make("tr", {class: "skipped"},
    make("td", {colspan: 6}, `lines ${first} to ${end - 1}, far from any instruction, are left out`)));
  const add = (number, text) => {
    const sums = p.sums.get(`${file}:${number}`), near = used[firstOver(used.length, at => used[at], number - 4)];
    const act = () => selectLine(p, file, number), isUsed = sums || p.makers.has(`${file}:${number}`);
    const onclick = () => { if (isUsed && getSelection()?.isCollapsed) act(); };
    if (sums && sums[2] > hot[2]) hot = sums;
    const heat = make("td", {class: "figure heat"}, sums ? us(sums[2], 1) : "");
    if (sums) heat.style.setProperty("--heat", String(sums[2] / most));
    const busy = sums ? Object.entries(sums[5]).map(([engine, ps]) => `${engine} ${us(ps, 1)}`).join(", ") : "";
    const [count, bytes] = sums ? [whole(sums[3]), sums[4] ? whole(sums[4]) : ""] : ["", ""];
    const figure = text => make("td", {class: "figure"}, text);
    body.append(make("tr", {"data-number": number, "aria-selected": "false", class: near <= number + 3 ? "" : "far"},
      figure(isUsed ? link(String(number), act) : String(number)), heat,
      make("td", {onclick}, make("code", {}, text)), make("td", {}, busy), figure(count), figure(bytes)));
  };
  for (const [first, lines] of parts) {
    skip(last + 1, first);
    lines.forEach((text, at) => add(first + at, text));
    last = first + lines.length - 1;
  }
  if (size) skip(last + 1, size + 1);
  else for (const number of used) add(number, "(the text of this file is not at hand)");
  const heads = ["line", "path us", "text", "busy us", "count", "bytes"];
  const box = at("files").children[p.index].querySelector(".lines");
  box.replaceChildren(table(heads, [0, 1, 4, 5], body));
  bring(box, box.querySelector(`tr[data-number="${hot[1]}"]`));
}

/** Make the panel of the source of a profile. @param {Profile} p */
function addSource(p) {
  const spent = new Map();
  for (const [file, , path, count] of p.content.lines) spent.set(file, (spent.get(file) || 0) + path + count * 1e-3);
  const files = [...p.content.files.keys()].sort((one, other) => (spent.get(other) || 0) - (spent.get(one) || 0));
  const options = files.map(file => make("option", {value: file}, p.content.files[file].name));
  const choice = make("select", {onchange: event => fillSource(p, +event.target.value)}, ...options);
  const lines = make("div", {class: "lines", tabindex: "0"});
  at("files").append(make("div", {}, make("label", {}, `${which(p)}file `, choice), lines));
}
const which = p => profiles.length < 2 ? "" : p.index ? "other profile: " : "this profile: ";

/** Fill the table of the instructions in view; of the marked ones, if some are. */
function fillTable() {
  const body = make("tbody");
  let count = 0, rows = "";
  for (const p of profiles)
    for (const i of p.inOrder()) {
      if (p.end[i] < axis.from || p.start[i] > axis.to) continue;
      if ((isMarking && !p.marked[i]) || (isAlone && !p.path[i])) continue;
      if (++count > MOST_IN_TABLE) continue;
      rows += `${p.index}:${i} `;
      const [engine] = p.content.sites[p.site[i]], waited = p.content.waited[p.waited[i]];
      const number = link(which(p) + whole(p.number[i]), () => select(p, i, true));
      const core = String(p.content.cores[p.core[i]].core), times = [us(p.start[i]), us(p.end[i])];
      const cells = [core, engine, p.name[p.site[i]], ...times, waited, p.line(i)];
      body.append(make("tr", {}, ...[number, ...cells].map((cell, at) =>
        make("td", {class: at === 4 || at === 5 ? "figure" : ""}, cell))));
    }
  const heads = ["number", "core", "engine", "name", "start us", "end us", "waited for", "line"];
  if (rows !== fillTable.rows) at("rows").replaceChildren(table(heads, [4, 5], body));  // focus stays in equal ones
  fillTable.rows = rows;
  const more = count > MOST_IN_TABLE ? `; the first ${MOST_IN_TABLE} are listed: zoom or search to see others` : "";
  at("range").textContent = `${whole(count)} instructions from ${us(axis.from)} to ${us(axis.to)} us${more}.`;
}
/** Fill the table when nothing has changed for a while. */
fillTable.later = () => { clearTimeout(fillTable.timer); fillTable.timer = setTimeout(fillTable, 250); };
fillTable.timer = 0; fillTable.rows = "";

/** Give each name of an instruction a hue, those with most time first, and list them below the timeline. */
function addHues() {
  /** @type {Map<string, number>} */ const spent = new Map();
  for (const p of profiles)
    for (let i = 0; i < p.count; i++) {
      const name = p.content.sites[p.site[i]][1];
      spent.set(name, (spent.get(name) || 0) + p.end[i] - p.start[i]);
    }
  const names = [...spent].sort((one, other) => other[1] - one[1]).map(([name]) => name);
  const hue = name => Math.min(HUES.length - 1, names.indexOf(name));
  for (const p of profiles) p.hue = p.content.sites.map(site => hue(site[1]));
  for (const name of names.slice(0, MOST_IN_LEGEND)) {
    const mark = make("span", {"aria-hidden": "true"}, "■ "), find = () => { at("search").value = name; search(); };
    mark.style.color = HUES[hue(name)][0];
    at("legend").append(make("button", {type: "button", class: "chip", onclick: find}, mark, name));
  }
}

/** @param {KeyboardEvent} event */
function keyDown(event) {
  const target = /** @type {HTMLElement} */ (event.target), isIn = at("timeline").parentElement.contains(target);
  const own = pictures.find(one => one.canvas === target) || pictures.find(one => one.canvas.matches(":hover"));
  const picture = own || (isIn ? pictures[0] : null), isControl = target.matches("a, button, input, summary");
  if (event.ctrlKey || event.metaKey || event.altKey || !picture || target.matches("[type=search], select")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key, middle = (axis.from + axis.to) / 2;
  const timeline = pictures.find(one => one instanceof Timeline && one.p === picture.p);
  const steps = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
  if ("wasd".includes(key)) {
    if (!held.size) requestAnimationFrame(time => steer(time, time));
    held.add(key);
  } else if (own && steps[key] && timeline instanceof Timeline) timeline.step(steps[key][0], steps[key][1]);
  else if (key === "f" && selected) {
    const {p, i} = selected, about = Math.max(1000, p.end[i] - p.start[i]);
    axis.show(p.start[i] - about, p.end[i] + about);
  } else if (key === "Enter" && own && !isControl) toSource();
  else if (key === "Escape") clear();
  else if (key === "0") axis.show(0, axis.end);
  else if (key === "+" || key === "-") axis.zoom(key === "+" ? 0.7 : 1 / 0.7, middle);
  else return;
  event.preventDefault();
}

/** Zoom and pan while keys are held. @param {number} now @param {number} last */
function steer(now, last) {
  if (!held.size) return;
  const by = Math.min(0.1, Math.max(0.016, (now - last) / 1000)), middle = (axis.from + axis.to) / 2;
  for (const key of held)
    if (key === "w" || key === "s") axis.zoom(Math.exp(key === "w" ? -2.5 * by : 2.5 * by), middle);
    else axis.pan(key === "a" ? -1.2 * by : 1.2 * by);
  requestAnimationFrame(next => steer(next, now));
}

/** @param {MouseEvent} event */
function follow(event) {
  const button = event.target instanceof Element ? event.target.closest("[data-line]") : null;
  if (!(button instanceof HTMLElement)) return;
  const [file, line] = (button.dataset.line || "0:0").split(":").map(Number);
  const p = profiles[Number(button.dataset.profile)];
  selectLine(p, file, line);
  const first = p.marked.indexOf(1);
  if (first >= 0) reveal(p.start[first], p.end[first]);
  at("timeline").scrollIntoView();
}

function listen() {
  const zoom = factor => axis.zoom(factor, (axis.from + axis.to) / 2);
  const print = () => { readColours(); for (const picture of pictures) picture.draw(); };
  const enter = event => { if (event.key === "Enter") nextMarked(event.shiftKey ? -1 : 1); };
  document.addEventListener("keydown", keyDown);
  document.addEventListener("keyup", event => held.delete(event.key.toLowerCase()));
  document.addEventListener("click", follow);
  window.addEventListener("blur", () => held.clear());
  window.addEventListener("resize", redraw);
  for (const name of ["beforeprint", "afterprint"]) window.addEventListener(name, print);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);
  at("search").addEventListener("input", search);
  at("search").addEventListener("keydown", enter);
  at("alone").addEventListener("change", () => { isAlone = at("alone").checked; redraw(); });
  at("capacity").addEventListener("change", redraw);
  const acts = {previous: () => nextMarked(-1), next: () => nextMarked(1), closer: () => zoom(0.6),
    wider: () => zoom(1 / 0.6), whole: () => axis.show(0, axis.end)};
  for (const [id, act] of Object.entries(acts)) at(id).addEventListener("click", act);
}

async function start() {
  const begun = performance.now();
  const blocks = [...document.querySelectorAll(".nkilib-profile")];
  const contents = await Promise.all(blocks.map(block => decoded(block.textContent || "")));
  profiles = contents.map((content, index) => new Profile(content, index));
  axis.end = axis.to = Math.max(1, ...profiles.map(p => p.content.time));
  addHues();
  document.documentElement.classList.add("ready");
  for (const p of profiles) {
    for (const id of which(p) ? ["lanes", "tiles"] : []) at(id).append(make("p", {}, which(p) + p.content.title));
    const name = which(p) + p.content.kernel;
    pictures.push(new Timeline(p, at("lanes"), `Timeline, ${name}: arrow keys select instructions`));
    pictures.push(new Memory(p, at("tiles"), `On-chip memory over time, ${name}: the figures list its peaks`));
    addSource(p);
  }
  for (const p of profiles)
    if (p.content.files.length) fillSource(p, +at("files").children[p.index].querySelector("select").value);
  listen();
  readColours();
  const {dataset} = document.documentElement, taken = () => String(Math.round(performance.now() - begun));
  requestAnimationFrame(() => requestAnimationFrame(() => { dataset.drawn = taken(); }));
}

start().catch(error => {
  const text = `The timeline cannot be drawn (${error}); it needs a browser of 2023 or later.`;
  document.querySelector("main")?.prepend(make("p", {role: "alert"}, text));
});
