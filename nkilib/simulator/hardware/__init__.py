"""The hardware generations, one file each."""

from .description import DmaTiming, Generation, Timing
from .trn1 import TRN1
from .trn2 import TRN2
from .trn3 import TRN3

__all__ = ["TRN1", "TRN2", "TRN3", "DmaTiming", "Generation", "Timing"]
