"""What begins and ends sessions, and gives them to another agent."""

from __future__ import annotations

from ._belongings import belongings_of as belongings_of
from ._deletion import Deletion as Deletion, DeletionError as DeletionError
from ._files import removes_folder as removes_folder
from ._first_turn import Bind as Bind
from ._fork import (
    Forks as Forks,
    MessageNotFoundError as MessageNotFoundError,
    RoundNotFoundError as RoundNotFoundError,
)
from ._lifecycle import Lifecycle as Lifecycle
from ._ports import Delegation as Delegation, Nobody as Nobody, Stages as Stages
from ._transfer import (
    Impact as Impact,
    Moved as Moved,
    MoveError as MoveError,
    TransferRefusedError as TransferRefusedError,
    Transfers as Transfers,
)
