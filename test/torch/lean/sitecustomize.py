"""Runs first in most trainers of our tests (torch_job.environment() has this folder in PYTHONPATH): PyTorch without the
modules that it imports and these trainers never use.

`import torch` loads the operators of tensors without data, quantization, the exporter, masked tensors and
distributions; an optimizer imports the compiler, torch._dynamo, only to be left out of it; torch.distributed.optim
imports FSDP for an optimizer of its own. Together they are more than half of the processor time of a trainer's start,
and a run has hundreds of starts. Whoever asks for more than is given here gets the real module. Tests with
environment(whole=True), and all that ask neither torch_job.py nor group_ranks.py, have the whole of PyTorch.
"""
import functools
import importlib
import importlib.machinery
import sys
import types


class Stub(types.ModuleType):
    """Knows what is given; loads the real module for everything else."""

    def __init__(self, name, **given):
        super().__init__(name)
        self.__dict__.update(given)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        load_real(self.__name__)
        return getattr(importlib.import_module(self.__name__), name)


def load_real(name):
    """The real module, or the package that this one is in, instead of its stub."""
    whole = COMPILER if name.startswith(COMPILER) else name
    if isinstance(sys.modules.get(whole), Stub):
        package, _, module = whole.rpartition(".")
        del sys.modules[whole]
        vars(sys.modules[package]).pop(module, None)
        for first in MODULES if whole == COMPILER else ():  # as without us: its imports go in a circle otherwise
            load_real(first)
        importlib.import_module(whole)


def left_as_it_is(function=None, *_, **__):
    return function or left_as_it_is


def without_operators():
    """What the operators of tensors without data do for everybody: there is no torch.Generator before it."""
    torch = sys.modules["torch"]
    if hasattr(torch._C, "_set_generator_metaclass"):
        torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)
    return Stub(OPERATORS)


COMPILER, OPERATORS = "torch._dynamo", "torch._meta_registrations"
PACKAGES = (COMPILER, "torch._native", "torch.ao", "torch.distributions", "torch.export", "torch.masked",
            "torch.nn.intrinsic", "torch.nn.qat", "torch.nn.quantizable", "torch.nn.quantized", "torch.quantization")
MODULES = (OPERATORS, "torch.distributed._meta_registrations")
STUBS = {name: functools.partial(Stub, name) for name in PACKAGES + MODULES} | {
    OPERATORS: without_operators,
    COMPILER: lambda: Stub(
        COMPILER, disable=left_as_it_is, graph_break=lambda *_: None,
        utils=Stub(f"{COMPILER}.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
        trace_rules=Stub(f"{COMPILER}.trace_rules", clear_lru_cache=lambda: None)),
    "torch.distributed.optim.named_optimizer": lambda: Stub("torch.distributed.optim.named_optimizer",
                                                            _NamedOptimizer=None),
}


def stubbed_package_of(name):
    return next((package for package in PACKAGES
                 if name.startswith(package + ".") and isinstance(sys.modules.get(package), Stub)), None)


class Finder:
    """Gives each stub once: whoever asks for the real module afterwards finds it where it lies."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in STUBS:
            return importlib.machinery.ModuleSpec(name, Finder, is_package=name in PACKAGES)
        if package := stubbed_package_of(name):
            load_real(package)
            if name in sys.modules:
                return importlib.machinery.ModuleSpec(name, Finder)
            return importlib.machinery.PathFinder.find_spec(name, sys.modules[package].__path__)
        return None

    @staticmethod
    def create_module(spec):
        return STUBS.pop(spec.name)() if spec.name in STUBS else sys.modules[spec.name]

    @staticmethod
    def exec_module(module):
        pass


sys.meta_path.insert(0, Finder)
