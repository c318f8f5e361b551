"""The public names of this package, each with the module it comes from."""

from limpet.observe.events import EVENT_TYPES as EVENT_TYPES
from limpet.observe.events import Event as Event
from limpet.observe.events import Observer as Observer
from limpet.observe.events import ObserverLike as ObserverLike
from limpet.observe.hub import Emit as Emit
from limpet.observe.hub import NoopObserver as NoopObserver
from limpet.observe.hub import gather as gather
from limpet.observe.log import LogObserver as LogObserver
from limpet.observe.observer_registry import register_observer as register_observer
from limpet.observe.observer_registry import resolve_observer as resolve_observer
from limpet.observe.progress_bar import ProgressObserver as ProgressObserver
