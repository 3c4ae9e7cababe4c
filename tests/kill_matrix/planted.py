"""Every fault that takes the place of a function of `model/`, by its name, as ranks look it up."""

from tests.kill_matrix.held_out import HELD_OUT
from tests.kill_matrix.model import IN_MODEL, SIZED
from tests.kill_matrix.ranks import OF_RANKS

PLANTED = {fault.name: fault for fault in (*IN_MODEL, *SIZED, *HELD_OUT, *OF_RANKS)}
