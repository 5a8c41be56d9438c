"""Every format of a head that is known, in the order in which they are asked.

To add one: a file beside this one with a `Format`, and its name here. A new family besides needs
its shape (`heads/description.py`), and its network and drafter (`methods/drafters/`).
"""

from spsbench.models.heads.formats.blockwise import BLOCKWISE
from spsbench.models.heads.formats.dflash import DFLASH, DSPARK
from spsbench.models.heads.formats.eagle import EAGLE
from spsbench.models.heads.formats.eagle3 import EAGLE3
from spsbench.models.heads.formats.falcon import FALCON
from spsbench.models.heads.formats.format import Format
from spsbench.models.heads.formats.medusa import MEDUSA
from spsbench.models.heads.formats.mlp import MLP
from spsbench.models.heads.formats.mtp import MTP, MTP_INSIDE
from spsbench.models.heads.formats.speculators import PARALLEL, SPECULATORS

FORMATS: tuple[Format, ...] = (
    SPECULATORS,
    PARALLEL,
    MTP,
    MTP_INSIDE,
    DSPARK,
    DFLASH,
    EAGLE3,
    EAGLE,
    FALCON,
    MEDUSA,
    MLP,
    BLOCKWISE,
)
