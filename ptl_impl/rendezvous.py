"""How Lightning's processes find each other: as in PyTorch."""

from pt_impl.rendezvous import host_store as host_store
from pt_impl.rendezvous import prepare_rendezvous as prepare_rendezvous
from pt_impl.rendezvous import tell_rendezvous as tell_rendezvous
