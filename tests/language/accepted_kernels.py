"""Kernels that are NKI: together they hold every construct that the walker lets through."""

from __future__ import annotations

from typing import Final

ACCEPTED: Final[dict[str, str]] = {
    "whole kernel": """\
@nki.jit
def kernel(left, right):
    \"\"\"Add two matrices.\"\"\"
    assert left.shape == right.shape, f"kernel: shapes must agree, got {left.shape} and {right.shape}"
    print(f"adding {left.dtype}, rows {left.shape[0]:5d}")
    total = nl.ndarray(shape=left.shape, dtype=left.dtype, buffer=nl.shared_hbm)
    rows = nl.tile_size.pmax
    for start in range(0, left.shape[0], rows):
        stop = min(start + rows, left.shape[0])
        tile = nl.ndarray((stop - start, left.shape[1]), left.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=left[start:stop, :])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=-1.0)
        nisa.dma_copy(dst=total[start:stop], src=tile)
    return total
""",
    "jit with parentheses": "@nki.jit()\ndef kernel(rows):\n    return rows\n",
    "branches": """\
def kernel(rows, mode="sum"):
    if mode == "sum":
        return rows
    elif mode == "mean":
        pass
    else:
        assert False, "kernel: mode must be sum or mean"
    return
""",
    "loops": """\
def kernel(count):
    total = 0
    while total < 10:
        total += 1
    for index in nl.affine_range(count):
        if index == 3:
            break
        continue
    for pair in [(1, 2), (3, 4)]:
        first, second = pair
        total += first * second
    for key, value in dict(rows=1).items():
        print(key, value)
    return total
""",
    "arithmetic": """\
def kernel(value):
    whole = (value + 3) // 4 * 4 % 5 - 2**3
    bits = ~value << 2 >> 1 | 8 & 4 ^ 2
    half = +value / -2.0
    bits |= 1
    return (whole, bits, half)
""",
    "conditions": """\
def kernel(value, kind):
    small = 0 < value <= 128 and kind in ("sum", "mean") or not value
    other = kind not in ["max"] and value != 3 and value >= 0 and value > 0
    return 1 if small == True else other
""",
    "lists": """\
def kernel(value):
    items = []
    items.append(value)
    items.extend((1, 2))
    items.remove(1)
    items.reverse()
    first = items.index(2)
    items[0] = 3
    return tuple(items), len(items), first, [0] * 3
""",
    "dicts": """\
def kernel(value):
    found = {"rows": 1, f"columns{value}": 2}
    found["depth"] = value
    for key in found.keys():
        print(key)
    found.pop("rows")
    return found.setdefault("width", 2)
""",
    "views": """\
def kernel(tensor, index):
    pattern = tensor.get_pattern()
    pattern[0][1] = 64
    even = tensor[..., ::2]
    flat = tensor[0:4].reshape((4 * tensor.shape[1], 1))
    gathered = flat.ap(pattern=[[1, 4], [1, 1]], vector_offset=index, indirect_dim=0)
    chosen = flat.vector_select(0, index)
    return even, gathered, chosen, tensor.permute((1, 0)), tensor.view(nl.int32), tensor.is_contiguous()
""",
    "order": """\
def kernel(tensor, other):
    first = nisa.memset(dst=tensor, value=0)
    nisa.memset(dst=other, value=0).depends_on(first)
    with nl.no_reorder():
        for index in range(2):
            nisa.memset(dst=tensor, value=index, name=f"fill{index}")
""",
    "device loops": """\
def kernel(tensor, reg):
    def body(index):
        nisa.memset(dst=tensor.ap([[1, 1], [1, 1]], scalar_offset=index), value=0)

    def again(reg):
        nisa.register_load(reg, tensor)
        return reg

    nl.fori_loop(0, reg, body)
    nl.while_loop(init=reg, body_fun=again)
""",
    "functions as values": """\
def double(value):
    return value * 2

def half(value):
    return value // 2

def choose(name):
    if name == "double":
        return double
    return half

def apply(function, value):
    return function(value)

def kernel(value):
    act = choose("half")
    stages = [double, act]
    return apply(stages[0], value) + apply(half, value)
""",
    "module constants": """\
LOWEST = -3.4e38
AXES = (1, 2)
PAIR = (nl.float32, "sum")
OP = nl.add
ROWS: int = 2**30

def kernel(value, op=OP, axes=AXES):
    width: int = AXES[0]
    return value + LOWEST + ROWS + width, op, PAIR[1], None, float("-inf")
""",
    "classes": """\
@dataclass
class Tiling(nl.NKIObject):
    rows: int
    whole: bool = False

    def split(self):
        self.rows = self.rows // 2
        return self

class Mode(Enum):
    SUM = 1
    MEAN = 2

def kernel(tiling: Tiling, mode: Mode):
    if mode == Mode.SUM:
        tiling = Tiling(tiling.rows, whole=True)
    return tiling.split().rows, mode.value, tiling.whole
""",
    "annotations": """\
def kernel(value: int | None = None, shape: tuple[int, ...] = (1, 2)) -> dict[str, int]:
    return dict(value=value)
""",
    "builtins": """\
def kernel(value):
    whole, rest = divmod(int(value), 128)
    label = str(max(whole, rest))
    assert isinstance(whole, int)
    return list(range(len(label))), slice(0, 3)
""",
}
"""Name -> source with a function `kernel`."""
