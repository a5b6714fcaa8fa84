"""Skills: global packages, who may use them, and what a run makes of them.

One service owns the folder of packages and its cache; agents have bindings, sessions
have selected names. What a run may use it takes once, when it begins (SKL-01..06).
"""

from __future__ import annotations

from ._activation import ACTIVATE as ACTIVATE, activated as activated
from ._environment import Environment as Environment
from ._migration import LegacySkills as LegacySkills
from ._packages import Package as Package, Packages as Packages
from ._ports import InlineWork as InlineWork, ThreadWork as ThreadWork, Work as Work
from ._service import Skills as Skills, SkillView as SkillView
from ._snapshot import Resources as Resources
