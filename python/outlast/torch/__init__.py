"""PyTorch on top of Outlast. Nothing here, torch included, is imported before it is used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.torch.rendezvous import RendezvousBackend, RendezvousHandler
    from outlast.torch.store import Store

_HOMES = {
    "RendezvousBackend": "outlast.torch.rendezvous",
    "RendezvousHandler": "outlast.torch.rendezvous",
    "Store": "outlast.torch.store",
}

__all__ = ["RendezvousBackend", "RendezvousHandler", "Store"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
