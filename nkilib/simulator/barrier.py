"""A barrier between the simulated cores that can never hang."""

from __future__ import annotations

from threading import Condition

from .errors import BarrierError, CoreAbortedError


class CoreBarrier:
    """Cores meet here; a core that ends or fails releases those that wait for it, with an error."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._waiting = 0
        self._round = 0
        self._finished = 0
        self._is_aborted = False
        self._changed = Condition()

    def wait(self) -> None:
        """Wait until all cores have called this.

        Raises:
            BarrierError: if a core has ended, so that it cannot come any more.
            CoreAbortedError: if a core has failed.
        """
        with self._changed:
            self._waiting += 1
            if self._waiting == self._cores:
                self._waiting = 0
                self._round += 1
                self._changed.notify_all()
                return
            entered = self._round
            while self._round == entered:
                if self._is_aborted:
                    raise CoreAbortedError
                if self._finished:
                    raise BarrierError("core_barrier: the other core ended without reaching this barrier")
                self._changed.wait()

    def finish(self) -> None:
        """A core has come to its end."""
        with self._changed:
            self._finished += 1
            self._changed.notify_all()

    def abort(self) -> None:
        """A core has failed: end the others at their next instruction or where they wait."""
        self._is_aborted = True
        with self._changed:
            self._changed.notify_all()

    @property
    def is_aborted(self) -> bool:
        return self._is_aborted
