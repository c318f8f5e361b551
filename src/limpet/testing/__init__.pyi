"""What helps to test code that uses Limpet, and to certify a store of your own."""

from limpet.testing import effects as effects
from limpet.testing.answers import UNANSWERED as UNANSWERED
from limpet.testing.answers import Script as Script
from limpet.testing.answers import Unscripted as Unscripted
from limpet.testing.answers import arun_to_end as arun_to_end
from limpet.testing.answers import in_turn as in_turn
from limpet.testing.answers import run_to_end as run_to_end
from limpet.testing.clock import FakeClock as FakeClock
from limpet.testing.crash.matrix import CrashMatrix as CrashMatrix
from limpet.testing.crash.matrix import CrashMatrixFailed as CrashMatrixFailed
from limpet.testing.crash.report import CrashReport as CrashReport
from limpet.testing.faults import Call as Call
from limpet.testing.faults import Fault as Fault
from limpet.testing.faults import FaultyStore as FaultyStore
from limpet.testing.network.hunt import HuntReport as HuntReport
from limpet.testing.network.hunt import NetworkHunt as NetworkHunt
from limpet.testing.network.proxy import FaultPoint as FaultPoint
from limpet.testing.network.proxy import FaultyNetwork as FaultyNetwork
from limpet.testing.power_loss.hunt import PowerLossFound as PowerLossFound
from limpet.testing.power_loss.hunt import PowerLossReport as PowerLossReport
from limpet.testing.power_loss.hunt import hunt_power_losses as hunt_power_losses
