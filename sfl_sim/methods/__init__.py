"""Rounds of every method as flows of operations, without a clock: one paper, one file."""

from sfl_sim.methods.base import Method, MethodOptions, Task
from sfl_sim.methods.cse_fsl import CseFsl
from sfl_sim.methods.cyclesl import CycleSL
from sfl_sim.methods.dtfl import Dtfl
from sfl_sim.methods.epsl import Epsl
from sfl_sim.methods.fedasync import FedAsync
from sfl_sim.methods.fedavg import FedAvg
from sfl_sim.methods.fedavgm import FedAvgM
from sfl_sim.methods.fedbuff import FedBuff
from sfl_sim.methods.fednag import FedNAG
from sfl_sim.methods.fednar import FedNAR
from sfl_sim.methods.fedprox import FedProx
from sfl_sim.methods.fsl_sage import FslSage
from sfl_sim.methods.gas import Gas
from sfl_sim.methods.harmony import Harmony
from sfl_sim.methods.heron import Heron
from sfl_sim.methods.ho_sfl import HoSfl
from sfl_sim.methods.hydra import Hydra
from sfl_sim.methods.korea import Korea
from sfl_sim.methods.locfedmix import LocFedMix
from sfl_sim.methods.mergesfl import MergeSFL
from sfl_sim.methods.mu_splitfed import MuSplitFed
from sfl_sim.methods.multiexit import MultiExit, SplitGP
from sfl_sim.methods.multihead import MultiHead
from sfl_sim.methods.s2fl import S2FL
from sfl_sim.methods.slowmo import SlowMo
from sfl_sim.methods.smofi import Smofi
from sfl_sim.methods.splitfed_v1 import SplitFedV1
from sfl_sim.methods.splitfed_v2 import SplitFedV2
from sfl_sim.methods.splitfed_v3 import SplitFedV3
from sfl_sim.methods.splitfrozen import SplitFrozen
from sfl_sim.methods.splitnn import SplitNN
from sfl_sim.methods.u_shaped import UShaped

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "splitnn": SplitNN,
    "splitfed_v1": SplitFedV1,
    "splitfed_v2": SplitFedV2,
    "splitfed_v3": SplitFedV3,
    "splitfrozen": SplitFrozen,
    "u_shaped": UShaped,
    "cse_fsl": CseFsl,
    "fsl_sage": FslSage,
    "dtfl": Dtfl,
    "heron": Heron,
    "mu_splitfed": MuSplitFed,
    "ho_sfl": HoSfl,
    "multihead": MultiHead,
    "mergesfl": MergeSFL,
    "epsl": Epsl,
    "cyclesl": CycleSL,
    "s2fl": S2FL,
    "locfedmix": LocFedMix,
    "hydra": Hydra,
    "korea": Korea,
    "smofi": Smofi,
    "fedprox": FedProx,
    "fednar": FedNAR,
    "fedavgm": FedAvgM,
    "slowmo": SlowMo,
    "fednag": FedNAG,
    "multiexit": MultiExit,
    "splitgp": SplitGP,
    "harmony": Harmony,
    "fedbuff": FedBuff,
    "fedasync": FedAsync,
    "gas": Gas,
}
"""The methods by the name that a scenario gives them."""

__all__ = ["METHODS", "Method", "MethodOptions", "Task"]
