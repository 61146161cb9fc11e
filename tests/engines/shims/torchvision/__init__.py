"""Stands in for torchvision, whose wheel wants CUDA: SGLang imports it for pictures, which are not tested here."""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType

__version__ = "0"


class Anything:
    """An object that has every attribute."""

    def __call__(self, *args, **named):
        return Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Part(ModuleType):
    """A module below torchvision."""

    __path__ = []  # noqa: RUF012 (what makes it a package)

    __getattr__ = Anything.__getattr__


class Parts(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes a module of every name below torchvision."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("torchvision.") else None

    def create_module(self, spec):
        return Part(spec.name)

    def exec_module(self, module):
        """Nothing to run."""


sys.meta_path.append(Parts())

from torchvision import io, ops, transforms  # noqa: E402

__all__ = ["io", "ops", "transforms"]
