"""pawl.torch.load: checkpoints that other frameworks wrote, into live modules and optimizers, held bit for bit against
what the writing job had; on four gloo ranks from one layout into another; and everything that is refused, after which
every byte is what it was.
"""
import json
import os
import shutil
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "python"))

import harness  # noqa: E402
import live_ranks  # noqa: E402
import live_trainings  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict  # noqa: E402

import pawl.torch  # noqa: E402
from pawl import _checkpoint  # noqa: E402
from pawl.errors import PawlError, Refused  # noqa: E402
from pawl.torch.optimizer_state import CreatedState  # noqa: E402

FIXTURES = os.path.join(harness.ROOT, "test", "fixtures")
WORLD = 4
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "F64": torch.float64, "F16": torch.float16}


def golden_of(folder):
    """What the writing job had: by name, by role. Read here by a few lines, not by pawl."""
    with open(os.path.join(FIXTURES, folder, "golden.safetensors"), "rb") as file:
        content = file.read()
    size = struct.unpack("<Q", content[:8])[0]
    found = {}
    for key, entry in json.loads(content[8:8 + size]).items():
        if key != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            flat = torch.frombuffer(bytearray(content[begin:end]), dtype=TYPES[entry["dtype"]]) if end > begin else (
                torch.empty(0, dtype=TYPES[entry["dtype"]]))
            name, role = key.rsplit("/", 1)
            found.setdefault(name, {})[role] = flat.reshape(entry["shape"])
    return found


def numbered_names(folder):
    """Of G6_ddp_zero_w3's two groups: 13 matrices, then the rest."""
    with open(os.path.join(FIXTURES, folder, "golden.json")) as file:
        order = json.load(file)["optimizer_index_to_fqn"]
    names = [order[str(number)] for number in range(len(order))]
    return pawl.torch.Hints(parameter_names=[names[:13], names[13:]])


def module_for(golden, dtype=None):
    """A module with these names and shapes, filled with what no golden holds."""
    root = nn.Module()
    for name, roles in golden.items():
        tensor = roles.get("weight", roles.get("buffer"))
        *path, last = name.split(".")
        module = root
        for step in path:
            if step not in module._modules:
                module.add_module(step, nn.Module())
            module = module._modules[step]
        blank = torch.full_like(tensor, -7, dtype=dtype if tensor.is_floating_point() and dtype else tensor.dtype)
        if tensor.is_floating_point() and "weight" in roles:
            module.register_parameter(last, nn.Parameter(blank))
        else:
            module.register_buffer(last, blank)
    return root


def adamw_for(module, golden):
    return torch.optim.AdamW([parameter for name, parameter in module.named_parameters()
                              if "exp_avg" in golden[name]], lr=0.125)


def state_of(module, optimizer=None):
    """Every byte: of the tensors, of the optimizer's state, and its hyperparameters."""
    def plain(value):
        if isinstance(value, torch.Tensor):
            content = value.detach().contiguous().reshape(-1).view(torch.uint8)
            return value.dtype, tuple(value.shape), bytes(content.tolist())
        return value
    found = {name: plain(tensor) for name, tensor in module.state_dict().items()}
    if optimizer is not None:
        for number, (_parameter, state) in enumerate(optimizer.state.items()):
            found[number] = {key: plain(value) for key, value in state.items()}
        found["groups"] = [{key: plain(value) for key, value in group.items() if key != "params"}
                           for group in optimizer.param_groups]
    return found


class Case(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="pawl-load-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.directory, name)

    def assertSame(self, expected, found, about):
        self.assertEqual(tuple(expected.shape), tuple(found.shape), about)
        self.assertTrue(torch.equal(expected, found.detach()), about)


class FixturesTest(Case):
    """From files of real jobs into a module with their names."""

    def load(self, folder, file, dtype=None, with_optimizer=True, **options):
        golden = golden_of(folder)
        module = module_for(golden, dtype)
        optimizer = adamw_for(module, golden) if with_optimizer else None
        report = pawl.torch.load(os.path.join(FIXTURES, folder, file), module, optimizer, **options)
        self.assertEqual([], report.missing)
        self.assertEqual([], report.unused)
        return golden, module, optimizer, report

    def check(self, folder, file, dtype=None, with_optimizer=True, steps=None, **options):
        golden, module, optimizer, report = self.load(folder, file, dtype, with_optimizer, **options)
        live = module.state_dict()
        self.assertEqual(set(golden), set(live))
        compared = 0
        for name, roles in golden.items():
            expected = roles.get("weight", roles.get("buffer"))
            if dtype is not None and expected.is_floating_point():
                wider = roles.get("master", expected) if dtype == torch.float32 else expected
                expected = wider.to(dtype) if "buffer" not in roles else expected.to(dtype)
            self.assertSame(expected, live[name], f"{folder} {name}")
            compared += 1
        for name, parameter in module.named_parameters() if optimizer else ():
            state = optimizer.state.get(parameter, {})
            for role in ("exp_avg", "exp_avg_sq", "step"):
                if role in golden[name]:
                    self.assertSame(golden[name][role].to(state[role].dtype), state[role], f"{folder} {name} {role}")
                    compared += 1
            if steps and state:
                self.assertEqual(steps, state["step"].item())
        self.assertEqual(compared, len(report.matched) - (len(optimizer.state) if steps else 0))
        self.assertGreater(report.bytes_loaded, 0)
        return report

    def test_torch_save(self):
        with self.assertRaisesRegex(Refused, "which is which.*nor are they the live optimizer's"):
            self.load("torch/G6_ddp_zero_w3", "consolidated.pt")
        report = self.check("torch/G6_ddp_zero_w3", "consolidated.pt", hints=numbered_names("torch/G6_ddp_zero_w3"))
        self.assertIn("torch.save", report.format)
        self.assertIn("keeps its own hyperparameters", " ".join(report.notes))  # saved in two groups, and here is one

    def test_dcp_of_fsdp2(self):
        report = self.check("torch/G1b_fsdp2_tied_w3", "ckpt")
        self.assertIn("keeps its own hyperparameters", " ".join(report.notes))  # saved in two groups, and here is one

    def test_dcp_tells_the_hyperparameters_of_its_groups(self):
        def training(*rates):
            model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
            return model, torch.optim.AdamW([{"params": layer.parameters(), "lr": rate, "betas": (rate, 0.75)}
                                             for layer, rate in zip(model, rates, strict=False)])
        model, optimizer = training(0.25, 0.5)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        weights, moments = get_state_dict(model, optimizer)
        with tempfile.TemporaryDirectory() as folder:
            dcp.save({"model": weights, "optim": moments}, checkpoint_id=folder, no_dist=True)
            other, live = training(0.0625, 0.0625)
            pawl.torch.load(folder, other, live)
        self.assertEqual([(0.25, (0.25, 0.75)), (0.5, (0.5, 0.75))],
                         [(group["lr"], group["betas"]) for group in live.param_groups])

    def test_dcp_of_fsdp2_with_tensor_parallelism(self):
        self.check("torch/G3_fsdp2_tp_2x2", "ckpt")

    def test_optimizer_state_keyed_by_number(self):
        names = ["0.weight", "0.bias", "1.weight", "1.bias"]
        self.check("torch/K_dcp_numbered", "ckpt", hints=pawl.torch.Hints(parameter_names=names))

    def test_deepspeed_zero1(self):
        self.check("deepspeed/zero1_w11", "ckpt", steps=3)

    def test_deepspeed_bf16_as_it_trained_and_into_float32(self):
        self.check("deepspeed/zero3_w2_bf16", "ckpt", steps=3)
        report = self.check("deepspeed/zero3_w2_bf16", "ckpt", torch.float32, steps=3)  # from the masters: bit for bit
        self.assertEqual([], [cast for cast in report.cast if "exp_avg" in cast])

    def test_huggingface_with_a_tied_head(self):
        self.check("torch/I1_llama_gqa_tied", "model", with_optimizer=False)
        self.check("torch/I1_llama_gqa_tied", "model", torch.bfloat16, with_optimizer=False)

    def test_megatron_under_its_own_names_and_under_those_of_huggingface(self):
        golden, module, _, _ = self.load("torch/J1_mcore_tp2_pp2", "")
        for name, parameter in module.named_parameters():
            self.assertSame(golden[name]["weight"], parameter, name)
        path = os.path.join(FIXTURES, "torch/J1_mcore_tp2_pp2")
        with _checkpoint.Checkpoint(path, names="huggingface", attention_heads=4) as renamed:
            wanted = {tensor.name: {"weight": torch.empty(tensor.shape)} for tensor in renamed.tensors
                      if tensor.role == "weight"}
        self.assertIn("model.layers.2.self_attn.q_proj.weight", wanted)
        other = module_for(wanted)
        report = pawl.torch.load(path, other, hints=pawl.torch.Hints(attention_heads=4))
        self.assertEqual(len(wanted), len(report.matched))
        self.assertSame(golden["embedding.word_embeddings.weight"]["weight"], other.model.embed_tokens.weight, "wte")
        query = other.get_parameter("model.layers.2.self_attn.q_proj.weight")
        qkv = golden["decoder.layers.2.self_attention.linear_qkv.weight"]["weight"]  # per group: its q heads, k, v
        size = query.shape[0] // 4
        groups = qkv.shape[0] // size - 4
        by_group = qkv.reshape(groups // 2, -1, size, qkv.shape[1])[:, :-2]
        self.assertSame(by_group.reshape(query.shape), query, "q_proj")

    def test_views_and_strides_of_memory(self):
        golden = golden_of("torch/G6_ddp_zero_w3")
        module = module_for(golden)
        for parameter in module.parameters():
            if parameter.dim() == 2:  # column-major, with room between the columns
                room = torch.full((parameter.shape[1], parameter.shape[0] + 3), -9.0)
                parameter.data = room[:, :parameter.shape[0]].T
        pawl.torch.load(os.path.join(FIXTURES, "torch/G6_ddp_zero_w3/consolidated.pt"), module, strict=False)
        for name, parameter in module.named_parameters():
            self.assertSame(golden[name]["weight"], parameter, name)
            if parameter.dim() == 2:
                around = parameter.data.T.as_strided((parameter.shape[1], 3), (parameter.shape[0] + 3, 1),
                                                     parameter.shape[0])
                self.assertTrue(bool((around == -9).all()), name)

    def test_one_element_of_no_stride_has_bytes(self):
        from pawl.torch import reading
        number = torch.arange(3.0)[1].expand(1)
        self.assertEqual([0, 0, 128, 63], reading._as_bytes(number).tolist())
        reading._as_bytes(number)[3] = 64  # of the same memory
        self.assertEqual([4.0], number.tolist())

    def test_what_cant_be_read_in_place_goes_through_small_buffers(self):
        from pawl.torch import reading
        before, reading.STAGING_BYTES = reading.STAGING_BYTES, 1000  # less than one tensor; rows of it fit
        try:
            golden, module, _, report = self.load("torch/G6_ddp_zero_w3", "consolidated.pt", torch.float64, False)
        finally:
            reading.STAGING_BYTES = before
        for name, parameter in module.named_parameters():
            self.assertSame(golden[name]["weight"].to(torch.float64), parameter, name)
        self.assertGreater(len(report.cast), 20)

    def test_wrappers_are_seen_through(self):
        golden = golden_of("torch/K_dcp_numbered")
        module = module_for(golden)
        report = pawl.torch.load(os.path.join(FIXTURES, "torch/K_dcp_numbered/ckpt"), torch.compile(module),
                                 hints=pawl.torch.Hints(parameter_names=["0.weight", "0.bias", "1.weight", "1.bias"]))
        self.assertEqual(4, len(report.matched))
        self.assertSame(golden["0.weight"]["weight"], module.get_parameter("0.weight"), "0.weight")


class OnLoading:
    """What a file may say of a group and nobody is to make: unpickling it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


class HyperparametersTest(Case):
    """What others' checkpoints say of the optimizer's groups, by the parameters' names; what they can't say stays."""

    def training(self, *groups, shapes=((3, 5), (5, 2)), **kind):
        """A model, and an AdamW with these groups: each a suffix of names, and what is its own."""
        model = nn.Sequential(*(nn.Linear(*shape) for shape in shapes))
        named = list(model.named_parameters())
        return model, torch.optim.AdamW([{"params": [each for name, each in named if name.endswith(suffix)], **own}
                                         for suffix, own in groups], **kind)

    def step(self, model, optimizer):
        optimizer.zero_grad()
        model(torch.linspace(-1, 1, 12).reshape(4, 3)).square().sum().backward()
        optimizer.step()

    def saved(self, model, optimizer, change=lambda state: None):
        self.step(model, optimizer)
        state = optimizer.state_dict()
        change(state)
        path = self.path("state.pt")
        torch.save({"model": model.state_dict(), "optimizer": state}, path)
        return path

    def test_torch_save_into_groups_of_another_order(self):
        slow = {"lr": 0.25, "betas": (0.5, 0.75), "weight_decay": 0.5}
        quick = {"lr": 0.125, "betas": (0.25, 0.875), "weight_decay": 0.0, "eps": 0.0625, "amsgrad": True}
        model, optimizer = self.training((".weight", slow), (".bias", quick))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        path = self.saved(model, optimizer)
        scheduler.step()
        path = self.saved(model, optimizer)
        other, live = self.training((".bias", {"amsgrad": True}), ("0.weight", {}), ("1.weight", {}), lr=7.0, eps=7.0)
        report = pawl.torch.load(path, other, live)
        self.assertEqual([], [note for note in report.notes if "hyperparameters" in note])
        for group, expected in zip(live.param_groups, (quick, slow, slow), strict=True):
            self.assertEqual((expected["lr"] / 2, expected["lr"]), (group["lr"], group["initial_lr"]))
            for key in expected.keys() - {"lr"}:
                self.assertEqual(expected[key], group[key], key)
        for trained in ((model, optimizer), (other, live)):  # and they go on alike
            self.step(*trained)
            self.step(*trained)
        for name, tensor in model.state_dict().items():
            self.assertSame(tensor, other.state_dict()[name], name)

    def test_what_is_no_plain_value_stays_and_is_named(self):
        made = self.path("made")

        def change(state):
            state["param_groups"][0].update(lr=torch.ones(2), schedule=OnLoading(made))
        path = self.saved(*self.training(("", {"weight_decay": 0.5})), change)
        model, optimizer = self.training(("", {}), lr=7.0)
        report = pawl.torch.load(path, model, optimizer)
        self.assertEqual((7.0, 0.5), (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]))
        self.assertNotIn("schedule", optimizer.param_groups[0])
        self.assertIn("lr, schedule are no number", " ".join(report.notes))
        self.assertFalse(os.path.exists(made))
        self.assertIn("param group 0 keeps its own lr", report.notes[0])  # named first
        self.assertEqual(report.notes[:1], report.kept)
        self.assertRegex(str(report).splitlines()[0], "but not all hyperparameters$")

    def test_what_only_one_of_two_groups_tells_is_not_the_others(self):
        path = self.saved(*self.training((".weight", {}), (".bias", {"lr": 0.5})),
                          lambda state: state["param_groups"][0].update(lr=torch.ones(2)))
        model, optimizer = self.training(("", {}), lr=7.0, weight_decay=0.5)
        pawl.torch.load(path, model, optimizer)
        self.assertEqual((7.0, 0.01), (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]))

    def test_rates_that_are_tensors_in_the_file_or_here(self):
        for saved_rate in (torch.tensor(0.25), torch.tensor([0.25], dtype=torch.float64), 0.25):
            for rate in (torch.tensor(7.0), 7.0):
                with self.subTest(f"{saved_rate!r} into {rate!r}"):
                    model, optimizer = self.training((".weight", {}), (".bias", {}), lr=0.5, foreach=False)
                    for group in optimizer.param_groups:
                        group["lr"] = saved_rate
                    path = self.saved(model, optimizer)
                    with tempfile.TemporaryDirectory() as folder:
                        weights, moments = get_state_dict(model, optimizer)
                        dcp.save({"model": weights, "optim": moments}, checkpoint_id=folder, no_dist=True)
                        for source in (path, folder):
                            other, live = self.training((".bias", {}), (".weight", {}), lr=rate, foreach=False)
                            report = pawl.torch.load(source, other, live)
                            self.assertEqual([], report.kept)
                            for group in live.param_groups:
                                self.assertEqual((type(rate), 0.25), (type(group["lr"]), float(group["lr"])))

    def test_a_flattened_state_tells_them_parameter_by_parameter(self):
        model, optimizer = self.training((".weight", {"lr": 0.25, "betas": (0.5, 0.75)}), (".bias", {"lr": 0.125}))
        self.step(model, optimizer)
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        weights, moments = get_state_dict(model, optimizer, options=options)
        self.assertIn("param_groups.0.weight.lr", moments)
        for key in [key for key in moments if key.endswith(".eps") and "bias" in key]:
            moments[key] = torch.tensor(0.0625)
        torch.save({"model": weights, "optim": moments}, self.path("flat.pt"))
        torch.save({**{f"model.{name}": each for name, each in weights.items()}, **moments}, self.path("flatter.pt"))
        dcp.save({"model": weights, "optim": moments}, checkpoint_id=self.path("dcp"), no_dist=True)
        dcp.save({**{f"app.model.{name}": each for name, each in weights.items()},
                  **{f"app.optim.{name}": each for name, each in moments.items()}},
                 checkpoint_id=self.path("flatter"), no_dist=True)
        for name in ("flat.pt", "flatter.pt", "dcp", "flatter"):
            with self.subTest(name):
                other, live = self.training((".bias", {}), (".weight", {}), lr=7.0)
                report = pawl.torch.load(self.path(name), other, live)
                self.assertEqual([], report.kept)
                self.assertEqual([(0.125, (0.9, 0.999), 0.0625), (0.25, (0.5, 0.75), 1e-8)],
                                 [(group["lr"], group["betas"], group["eps"]) for group in live.param_groups])

    def test_an_optimizer_without_state_has_rates_all_the_same(self):
        def training(*rates):
            model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
            return model, torch.optim.SGD([{"params": each.parameters(), "lr": rate}
                                           for each, rate in zip(model, rates, strict=True)])
        model, optimizer = training(0.25, 0.5)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, self.path("state.pt"))
        weights, moments = get_state_dict(model, optimizer)
        torch.save({"model": weights, "optimizer": moments}, self.path("named.pt"))
        dcp.save({"model": weights, "optim": moments}, checkpoint_id=self.path("dcp"), no_dist=True)
        for name in ("state.pt", "named.pt", "dcp"):
            with self.subTest(name):
                other, live = training(7.0, 7.0)
                report = pawl.torch.load(self.path(name), other, live)
                self.assertEqual([], report.kept)
                self.assertEqual([0.25, 0.5], [group["lr"] for group in live.param_groups])

    def test_betas_that_are_tensors_stay_tensors(self):
        betas = (torch.tensor(0.5), torch.tensor(0.75))
        model, optimizer = self.training((".weight", {}), (".bias", {}), lr=torch.tensor(0.5), foreach=False)
        for group in optimizer.param_groups:
            group["betas"] = betas
        path = self.saved(model, optimizer)
        for here in ((torch.tensor(0.125), torch.tensor(0.25)), (0.125, 0.25)):
            other, live = self.training((".weight", {}), (".bias", {}), foreach=False)
            for group in live.param_groups:
                group["betas"] = tuple(each.clone() if isinstance(each, torch.Tensor) else each for each in here)
            pawl.torch.load(path, other, live)
            for group in live.param_groups:
                self.assertEqual([(type(each), float(each)) for each in group["betas"]],
                                 [(type(each), value) for each, value in zip(here, (0.5, 0.75), strict=True)])

    def test_a_schedulers_rates_are_no_weights(self):
        model, optimizer = self.training((".weight", {}), (".bias", {}), lr=torch.tensor(0.5), foreach=False)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
        path = self.path("with scheduler.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict()}, path)
        other, live = self.training((".weight", {}), (".bias", {}), lr=torch.tensor(0.25), foreach=False)
        pawl.torch.load(path, other, live)
        self.assertTrue(all(torch.equal(mine, theirs)
                            for mine, theirs in zip(model.parameters(), other.parameters(), strict=True)))

    def test_a_scheduler_finds_what_it_had(self):
        model, optimizer = self.training(("", {}))
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=10)
        path = self.saved(model, optimizer)
        other, live = self.training(("", {}))
        pawl.torch.load(path, other, live)
        self.assertEqual({key: value for key, value in optimizer.param_groups[0].items() if key != "params"},
                         {key: value for key, value in live.param_groups[0].items() if key != "params"})
        torch.optim.lr_scheduler.OneCycleLR(live, 0.5, total_steps=10, last_epoch=1)

    def test_what_a_checkpoint_does_not_say_is_named_first(self):
        model, optimizer = self.training(("", {}))
        path = self.saved(model, optimizer, lambda state: state["param_groups"][0].pop("weight_decay"))
        report = pawl.torch.load(path, *self.training(("", {})))
        self.assertEqual(["param group 0 keeps its own weight_decay: the checkpoint doesn't say it, or not of all its "
                          "parameters"], report.kept)
        self.assertEqual(report.kept, report.notes[:1])

    def test_groups_that_disagree_about_one_here_leave_it_alone(self):
        path = self.saved(*self.training((".weight", {"lr": 0.25}), (".bias", {"lr": 0.5})))
        model, optimizer = self.training((".bias", {}), (".weight", {}))
        optimizer.param_groups[0]["params"].append(optimizer.param_groups[1]["params"].pop())
        report = pawl.torch.load(path, model, optimizer)
        self.assertEqual([0.001, 0.25], [group["lr"] for group in optimizer.param_groups])
        self.assertIn("param group 0 keeps its own hyperparameters", " ".join(report.notes))

    def test_numbers_that_could_be_anybodys_tell_nothing(self):
        groups = (("0.weight", {"lr": 0.25}), ("1.weight", {"lr": 0.5}))
        path = self.saved(*self.training(*groups, shapes=((3, 3), (3, 3))))
        model, optimizer = self.training((".weight", {}), ("0.bias", {}), shapes=((3, 3), (3, 3)), weight_decay=0.125)
        for group in optimizer.param_groups:
            group["lr"] = 7.0
        with self.assertRaisesRegex(Refused, "not known which is which"):
            pawl.torch.load(path, model, optimizer)
        report = pawl.torch.load(path, model, optimizer, strict=False)
        self.assertEqual([7.0, 7.0], [group["lr"] for group in optimizer.param_groups])
        self.assertIn("keeps its own hyperparameters", " ".join(report.notes))
        names = self.path("names")
        with open(names, "w") as file:
            file.write("0.weight\n\n1.weight\n")  # a group each
        model, optimizer = self.training(*groups[::-1], shapes=((3, 3), (3, 3)))
        pawl.torch.load(path, model, optimizer, hints=pawl.torch.Hints(parameter_names=names))
        self.assertEqual([0.5, 0.25], [group["lr"] for group in optimizer.param_groups])
        pawl.torch.load(path, model, optimizer)  # without names by number, as torch's load_state_dict
        self.assertEqual([0.25, 0.5], [group["lr"] for group in optimizer.param_groups])

    def test_deepspeed_of_all_stages(self):
        for folder in ("zero1_w11", "zero2_w1_empty", "zero3_w2_bf16"):
            golden = golden_of(f"deepspeed/{folder}")
            module = module_for(golden)
            trained = [parameter for name, parameter in module.named_parameters() if "exp_avg" in golden[name]]
            vectors, matrices = ([each for each in trained if (each.dim() > 1) == is_matrix]
                                 for is_matrix in (False, True))
            optimizer = torch.optim.AdamW([{"params": vectors}, {"params": matrices}], lr=7.0)
            report = pawl.torch.load(os.path.join(FIXTURES, "deepspeed", folder, "ckpt"), module, optimizer)
            self.assertEqual([(0.003, (0.9, 0.95), 0.0), (0.003, (0.9, 0.95), 0.1)],
                             [(group["lr"], group["betas"], group["weight_decay"]) for group in optimizer.param_groups],
                             f"{folder} {report.notes}")


class StateTest(unittest.TestCase):
    """Optimizer state where there is none: as the optimizer itself makes it, and nothing else moves."""

    OPTIMIZERS = [(torch.optim.Adam, {"amsgrad": True}), (torch.optim.AdamW, {"foreach": True}),
                  (torch.optim.SGD, {"momentum": 0.5}), (torch.optim.SGD, {}),
                  (torch.optim.RMSprop, {"centered": True}),
                  (torch.optim.NAdam, {}), (torch.optim.Adamax, {}), (torch.optim.Adadelta, {}),
                  (torch.optim.ASGD, {}), (torch.optim.Rprop, {}), (torch.optim.RAdam, {}), (torch.optim.Adafactor, {})]

    def parameters(self):
        torch.manual_seed(3)
        found = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.tensor([-0.0, float("nan"), 1.0]))]
        found[0].grad = torch.ones(4, 3)
        return found

    def test_it_has_the_words_shapes_and_types_of_a_step(self):
        for kind, options in self.OPTIMIZERS:
            with self.subTest(kind.__name__):
                parameters, stepped = self.parameters(), self.parameters()
                optimizer, other = kind(parameters, lr=0.5, **options), kind(stepped, lr=0.5, **options)
                torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)  # which replaces step()
                before = [bytes(p.detach().view(torch.uint8).reshape(-1).tolist()) for p in parameters]
                groups = json.dumps([{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups])
                created = CreatedState()
                created.create(optimizer, parameters)
                stepped[1].grad = torch.zeros(3)
                other.step()
                for mine, theirs in zip(parameters, stepped, strict=False):
                    self.assertEqual(set(other.state[theirs]), set(optimizer.state[mine]))
                    for key, value in other.state[theirs].items():
                        found = optimizer.state[mine][key]
                        self.assertEqual(type(value), type(found), key)
                        if isinstance(value, torch.Tensor):
                            self.assertEqual((value.shape, value.dtype), (found.shape, found.dtype), key)
                self.assertEqual(before, [bytes(p.detach().view(torch.uint8).reshape(-1).tolist()) for p in parameters])
                self.assertTrue(bool((parameters[0].grad == 1).all()) and parameters[1].grad is None)
                self.assertEqual(groups, json.dumps([{k: v for k, v in g.items() if k != "params"}
                                                     for g in optimizer.param_groups]))
                created.take_back()
                self.assertEqual(0, len(optimizer.state))

    def test_an_optimizer_that_needs_more_than_gradients_is_refused(self):
        parameters = self.parameters()
        optimizer = torch.optim.LBFGS(parameters)
        with self.assertRaisesRegex(Refused, "take a step, then load"):
            CreatedState().create(optimizer, parameters)


class RefusalTest(Case):
    """What doesn't fit is named, and nothing has changed."""

    PATH = os.path.join(FIXTURES, "torch/G6_ddp_zero_w3/consolidated.pt")

    def setUp(self):
        super().setUp()
        self.golden = golden_of("torch/G6_ddp_zero_w3")
        self.wanted = {name: dict(roles) for name, roles in self.golden.items()}

    def refused(self, words, path=None, optimizer_of=None, error=Refused, **options):
        module = module_for(self.wanted)
        optimizer = (optimizer_of or (lambda m: adamw_for(m, {**self.wanted})))(module)
        before = state_of(module, optimizer)
        options.setdefault("hints", numbered_names("torch/G6_ddp_zero_w3"))
        with self.assertRaises(error) as raised:
            pawl.torch.load(path or self.PATH, module, optimizer, **options)
        for word in words:
            self.assertIn(word, str(raised.exception))
        self.assertEqual(before, state_of(module, optimizer))
        return str(raised.exception)

    def test_wrong_shapes_are_named_with_both(self):
        for _number, name in enumerate(sorted(self.wanted)):
            weight = self.wanted[name].get("weight")
            if weight is not None and weight.dim() == 2:
                for role in ("weight", "exp_avg", "exp_avg_sq"):
                    if role in self.wanted[name]:
                        self.wanted[name][role] = torch.zeros(weight.shape[0] + 1, weight.shape[1])
        text = self.refused(["[24, 24] in the checkpoint, [25, 24] here", "more"], strict=False)
        self.assertEqual(5, text.count("in the checkpoint,"))

    def test_missing_tensors_are_named(self):
        for extra in range(7):
            self.wanted[f"layers.9.w{extra}"] = {"weight": torch.zeros(3, extra + 1)}
        self.refused(["layers.9.w0 (weight) [3, 1]", "and 2 more", "strict=False"])

    def test_tensors_that_nobody_wants_are_named(self):
        del self.wanted["output.weight"]
        self.refused(["output.weight (weight) [61, 24]", "strict=False"])

    def test_not_strict_reports_instead(self):
        del self.wanted["output.weight"]
        self.wanted["extra"] = {"weight": torch.zeros(3)}
        module = module_for(self.wanted)
        report = pawl.torch.load(self.PATH, module, adamw_for(module, self.wanted), strict=False)
        self.assertEqual(["extra (weight)"], report.missing)
        self.assertIn("output.weight (weight) [61, 24]", report.unused)
        self.assertTrue(bool((module.extra == -7).all()))
        self.assertSame(self.golden["norm.weight"]["weight"], module.norm.weight, "norm.weight")

    def test_an_optimizer_of_another_class(self):
        self.refused(["momentum_buffer", "exp_avg", "optimizer=None"], optimizer_of=self.stepped_sgd)

    def stepped_sgd(self, module):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.0, momentum=0.5)
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        return optimizer

    def test_weights_of_another_optimizer_are_loaded_without_it(self):
        module = module_for(self.wanted)
        pawl.torch.load(self.PATH, module)
        self.assertSame(self.golden["norm.weight"]["weight"], module.norm.weight, "norm.weight")

    def test_an_optimizer_without_state_is_not_left_without_a_word(self):
        path = os.path.join(FIXTURES, "torch/I1_llama_gqa_tied/model")
        self.wanted = golden_of("torch/I1_llama_gqa_tied")
        everything = lambda module: torch.optim.AdamW(module.parameters(), lr=0.5)  # noqa: E731
        self.refused(["no optimizer state", "optimizer=None"], path=path, optimizer_of=everything)
        module = module_for(self.wanted)
        pawl.torch.load(path, module, torch.optim.SGD(module.parameters(), lr=0.5))  # which keeps none

    def test_a_prefix_is_recognised_and_its_remedy_works(self):
        wanted = self.wanted
        self.wanted = {f"net.{name}": roles for name, roles in wanted.items()}
        text = self.refused(["removeprefix('net.')"])
        module = module_for(self.wanted)
        rename = eval(text.split("rename=", 1)[1])  # as a reader of the message would
        report = pawl.torch.load(self.PATH, module, rename=rename)
        self.assertEqual([], report.missing)
        self.assertSame(self.golden["norm.weight"]["weight"], module.net.norm.weight, "norm.weight")

    def test_types_that_are_no_such_numbers(self):
        self.wanted["norm.weight"] = {"weight": torch.zeros(24, dtype=torch.int64)}
        self.refused(["norm.weight", "float32", "int64"])

    def test_what_is_no_checkpoint(self):
        self.refused(["nowhere"], path=self.path("nowhere"))
        broken = self.path("broken.pt")
        with open(self.PATH, "rb") as file:
            content = file.read()
        with open(broken, "wb") as file:
            file.write(content[:len(content) // 2])
        self.refused([], path=broken, error=PawlError)


class Counter(nn.Module):
    """With state of its own that is no tensor."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


class StoreTest(Case):
    """From pawl's own store: also what is no tensor comes back, and damaged bytes don't."""

    def training(self, lr, seed, swapped=False):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 5), Counter(), nn.Linear(5, 3))
        groups = [{"params": list(model[0].parameters()), "lr": lr},
                  {"params": list(model[2].parameters()), "lr": 2 * lr, "betas": (0.5, 0.75)}]
        return model, torch.optim.NAdam(groups[::-1] if swapped else groups)

    def saved(self):
        model, optimizer = self.training(0.125, 1)
        for _step in range(3):
            nn.Sequential(model[0], model[2])(torch.rand(2, 4)).sum().backward()
            optimizer.step()
        model[1].count = 17
        pawl.torch.save(self.path("ckpt"), model, optimizer, values={"step": 3, "note": "a\u00fc"})
        return model, optimizer

    def test_all_of_it_comes_back_by_name(self):
        model, optimizer = self.saved()
        other, mine = self.training(0.5, 2, swapped=True)
        report = pawl.torch.load(self.path("ckpt"), other, mine)
        self.assertEqual({"step": 3, "note": "a\u00fc"}, report.values)
        self.assertEqual(17, other[1].count)
        self.assertEqual([0.25, 0.125], [group["lr"] for group in mine.param_groups])
        self.assertEqual([(0.5, 0.75), (0.9, 0.999)], [group["betas"] for group in mine.param_groups])
        for name, parameter in model.named_parameters():
            twin = other.get_parameter(name)
            self.assertSame(parameter.detach(), twin, name)
            self.assertEqual(set(optimizer.state[parameter]), set(mine.state[twin]))
            for key, value in optimizer.state[parameter].items():
                self.assertSame(value, mine.state[twin][key], f"{name} {key}")
        self.assertEqual(4, report.created)

    def test_damaged_bytes_are_never_loaded(self):
        self.saved()
        data = os.path.join(self.path("ckpt"), "data-00000.safetensors")
        with open(data, "r+b") as file:
            file.seek(-3, os.SEEK_END)
            byte = file.read(1)
            file.seek(-3, os.SEEK_END)
            file.write(bytes([byte[0] ^ 4]))
        other, mine = self.training(0.5, 2)
        before = state_of(other, mine)
        with self.assertRaisesRegex(PawlError, "data-00000"):
            pawl.torch.load(self.path("ckpt"), other, mine)
        self.assertEqual(before, state_of(other, mine))
        pawl.torch.load(self.path("ckpt"), other, mine, verify=False)  # whoever insists

    def test_bytes_are_proven_while_they_are_read(self):
        model, optimizer = self.saved()
        data = os.path.join(self.path("ckpt"), "data-00000.safetensors")
        other, mine = self.training(0.5, 2)
        flip(data, os.path.getsize(data) - 3)
        with self.assertRaisesRegex(PawlError, "data-00000.*Part of it has been read"):
            pawl.torch.load(self.path("ckpt"), other, mine, verify="reading")
        flip(data, os.path.getsize(data) - 3)
        pawl.torch.load(self.path("ckpt"), other, mine, verify="reading")
        self.assertEqual(state_of(model, optimizer), state_of(other, mine))
        with self.assertRaisesRegex(Refused, "verify='later'"):
            pawl.torch.load(self.path("ckpt"), other, mine, verify="later")

    def plain(self, seed):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
        model(torch.rand(2, 4)).sum().backward()
        optimizer.step()
        return model, optimizer

    def test_damaged_files_of_others_are_never_loaded(self):
        """Of every format that has checksums: nothing has changed where a byte is damaged."""
        model, optimizer = self.plain(1)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, self.path("state.pt"))
        dcp.save({"model": model.state_dict()}, checkpoint_id=self.path("dcp"), no_dist=True)
        weight = struct.pack("<20f", *model[0].weight.flatten().tolist())
        for path, has_state in ((self.path("state.pt"), True), (self.path("dcp"), False)):
            files = [path] if os.path.isfile(path) else [os.path.join(path, name) for name in os.listdir(path)]
            data, place = next((file, whole.index(weight)) for file, whole in ((file, read(file)) for file in files)
                               if weight in whole)
            flip(data, place)
            for verify in (True, "reading"):
                other, mine = self.plain(2)
                before = state_of(other, mine)
                with self.subTest(path=path, verify=verify), self.assertRaisesRegex(PawlError, "checksum"):
                    pawl.torch.load(path, other, mine if has_state else None, verify=verify)
                if verify is True:
                    self.assertEqual(before, state_of(other, mine))
            pawl.torch.load(path, other, mine if has_state else None, verify=False)  # whoever insists
            flip(data, place)
            for verify in (True, "reading"):
                other, mine = self.plain(2)
                pawl.torch.load(path, other, mine if has_state else None, verify=verify)
                self.assertEqual(model[0].weight.tolist(), other[0].weight.tolist())

    def test_damaged_rates_are_never_loaded(self):
        """A rate that is a tensor becomes a number where the checkpoint is opened."""
        model, optimizer = self.plain(1)
        optimizer.param_groups[0]["lr"] = torch.tensor(0.8125369)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, self.path("state.pt"))
        dcp.save(state, checkpoint_id=self.path("dcp"), no_dist=True)
        rate = struct.pack("<f", optimizer.param_groups[0]["lr"].item())
        for path in (self.path("state.pt"), self.path("dcp")):
            files = [path] if os.path.isfile(path) else [os.path.join(path, name) for name in os.listdir(path)]
            data = next(file for file in files if rate in read(file))
            place = read(data).index(rate)
            flip(data, place)
            other, mine = self.plain(2)
            before = state_of(other, mine)
            with self.subTest(path=path), self.assertRaisesRegex(PawlError, "checksum"):
                pawl.torch.load(path, other, mine)
            self.assertEqual(before, state_of(other, mine))
            flip(data, place)
            pawl.torch.load(path, other, mine)
            self.assertAlmostEqual(0.8125369, float(mine.param_groups[0]["lr"]), 6)

    def test_tensors_that_are_not_read_are_named(self):
        model, _ = self.plain(1)
        scaled = torch.quantize_per_tensor(torch.ones(4), 0.5, 3, torch.qint8)
        torch.save({**model.state_dict(), "scaled": scaled}, self.path("state.pt"))
        other, _ = self.plain(2)
        with self.assertRaisesRegex(Refused, r"scaled \(weight\) is quantised.*strict=False"):
            pawl.torch.load(self.path("state.pt"), other)
        report = pawl.torch.load(self.path("state.pt"), other, strict=False)
        self.assertIn("scaled (weight) is quantised", " ".join(report.notes))

    def test_tensors_of_deepspeeds_files_that_are_not_read_are_named(self):
        shutil.copytree(os.path.join(FIXTURES, "deepspeed", "zero2_w1_empty", "ckpt"), self.path("deepspeed"))
        path = os.path.join(self.path("deepspeed"), "global_step3", "mp_rank_00_model_states.pt")
        state = torch.load(path, weights_only=False)
        state["module"]["mask.sparse"] = torch.eye(3).to_sparse()
        torch.save(state, path)
        with _checkpoint.Checkpoint(self.path("deepspeed")) as checkpoint:
            self.assertRegex(" ".join(checkpoint.unsupported), "mask.sparse has no plain bytes")

    def test_shares_of_other_checksums_prove_nothing(self):
        self.saved()
        with _checkpoint.Checkpoint(self.path("ckpt")) as checkpoint:
            everything = [tensor.index for tensor in checkpoint.tensors]
            self.assertEqual("", checkpoint.seen())
            others = " ".join(f"{number}:{number + 1}:4:16:64" for number in everything)
            checkpoint.prove(everything, seen=others)
            for nonsense in ("1", "1:", "a:1:1:1:1", "1:1:1:1:1,2:2:2:2:2", "999999:1:1:1:1", "1:-1:1:1:1", "1:1:1:1"):
                with self.assertRaisesRegex(Refused, "seen"):
                    checkpoint.prove(everything, seen=nonsense)
            data = os.path.join(self.path("ckpt"), "data-00000.safetensors")
            flip(data, os.path.getsize(data) - 3)
            with self.assertRaisesRegex(PawlError, "data-00000"):
                checkpoint.prove(everything, seen=others)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def flip(path, offset):
    """Another bit at that place; the same again: as it was."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 4]))


def stored(kind, path, seed, word, ours=False):
    """A training of that kind, saved by torch's own dcp, or by pawl; its truth."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    model, optimizer = live_trainings.make(kind, word, seed)
    if ours:
        pawl.torch.save(path, model, optimizer)
        return live_trainings.truth(kind, model, optimizer)
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": states}, checkpoint_id=path)
    return live_trainings.truth(kind, model, optimizer)


class Even(live_trainings.Model):
    """Of the size that tensor parallelism computes with, whatever the layout."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **{**options, "inner": 6})


def from_one_layout_to_another(rank, world, path, source, target, word, steps, ours):
    live_trainings.Model = Even  # in this process alone
    truth, of_ranks = stored(source, path, 1, word, ours), [None] * world
    dist.all_gather_object(of_ranks, truth)  # of ZeRO and pipelines each rank knows its own
    truth = {key: value for of_rank in of_ranks for key, value in of_rank.items()}
    model, optimizer = live_trainings.make(target, word, 2, steps=steps)
    report = pawl.torch.load(path, model, optimizer)
    found = live_trainings.truth(target, model, optimizer)
    differing = []
    for name, role in found:
        key = (name, role) if (name, role) in truth else ("embed.weight" if name == "head.weight" else name, role)
        if key not in truth or not torch.equal(truth[key], found[name, role]):
            differing.append((name, role, key in truth))
    return {"differing": differing, "compared": len(found), "matched": len(report.matched), "read": report.bytes_read,
            "received": report.bytes_received, "loaded": report.bytes_loaded, "missing": report.missing,
            "unused": report.unused, "state": len(optimizer.state) if target != "zero" else 1}


def refused_on_all(rank, world, path, source, target):
    """One rank's model differs: all hear of it, and nothing has changed anywhere."""
    stored(source, path, 1, "adamw")
    model, optimizer = live_trainings.make(target, "adamw", 2, steps=0)
    if rank == 2:
        model.register_buffer("more", torch.zeros(3))
    before = {name: _local(tensor).clone() for name, tensor in model.state_dict().items()}
    try:
        pawl.torch.load(path, model, optimizer)
        return "loaded"
    except Refused as error:
        after = {name: _local(tensor) for name, tensor in model.state_dict().items()}
        same = all(torch.equal(before[name], after[name]) for name in before)
        return str(error) if same and not optimizer.state else "changed"


def proven_together(rank, world, path):
    """Of a load into another layout: what proves its bytes when it has read them, after the disk's have changed."""
    live_trainings.Model = Even  # in this process alone
    stored("fsdp2", path, 1, "adamw", ours=True)
    model, optimizer = live_trainings.make("fsdp2_tp", "adamw", 2)
    prove, answers = _checkpoint.Checkpoint.prove, []

    def spoilt(checkpoint, tensors, share, shares, *more, seen=None, **options):
        dist.barrier()
        if rank == 0:
            flip(*largest_seen(path, seen))
        dist.barrier()
        for given in (seen, None):  # what was read wasn't damaged yet, what is read again is
            try:
                prove(checkpoint, tensors, share, shares, seen=given, **options)
                answers.append("whole")
            except PawlError:
                answers.append("damaged")

    _checkpoint.Checkpoint.prove = spoilt
    pawl.torch.load(path, model, optimizer, verify="reading")
    return answers


def largest_seen(path, seen):
    """File and offset of the largest piece of which two ranks or more have seen each byte once, all together."""
    sums, ranks = {}, {}
    for each in seen.split():
        number, _, *places = map(int, each.split(":"))
        sums[number] = [a + b for a, b in zip(sums.get(number, (0, 0, 0)), places, strict=False)]
        ranks[number] = ranks.get(number, 0) + 1
    with open(os.path.join(path, "manifest.json")) as file:
        manifest = json.load(file)
    pieces = sorted((piece for tensor in manifest["tensors"] for piece in tensor["pieces"]),
                    key=lambda piece: (piece["file"], piece["offset"]))  # so are their checksums numbered
    whole = {number: count for number, (count, squares, cubes) in sums.items()
             if (squares, cubes) == (count ** 2, count ** 3) and ranks[number] > 1}
    found = pieces[max(whole, key=lambda number: whole[number])]
    return os.path.join(path, f"data-{found['file']:05}.safetensors"), found["offset"]


def _local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class RanksTest(Case):
    """On four ranks, from what torch's own dcp wrote of one layout into another."""

    def move(self, source, target, word="adamw", steps=0, ours=False):
        ranks = live_ranks.run(WORLD, from_one_layout_to_another, self.path("ckpt"), source, target, word, steps,
                                ours)
        for rank, each in enumerate(ranks):
            self.assertEqual([], each["differing"], f"rank {rank}")
            self.assertGreater(each["compared"], 0)
            self.assertEqual([], each["missing"])
            self.assertEqual([], each["unused"])
            self.assertGreater(each["state"], 0)
        return ranks

    def test_replicas_are_read_once(self):
        ranks = self.move("fsdp2", "ddp")
        size = sum(os.path.getsize(os.path.join(self.path("ckpt"), name)) for name in os.listdir(self.path("ckpt")))
        self.assertLessEqual(sum(each["read"] for each in ranks), 1.05 * size)
        self.assertLessEqual(sum(each["read"] for each in ranks), 1.05 * ranks[0]["loaded"])
        for each in ranks:
            self.assertGreater(each["received"], each["loaded"] // 2)

    def test_sharded_into_sharded(self):
        self.move("fsdp2_tp", "hsdp")

    def test_into_an_optimizer_that_has_state(self):
        self.move("hsdp", "fsdp2_tp", steps=2)

    def test_momentum_into_tensor_parallelism(self):
        self.move("fsdp2_tp", "tp", word="sgd")

    def test_into_zero_and_fsdp1(self):
        self.move("ddp", "zero")
        shutil.rmtree(self.path("ckpt"))
        self.move("fsdp2", "fsdp1")

    def test_from_our_own_store(self):
        self.move("zero", "fsdp2_tp", ours=True)
        shutil.rmtree(self.path("ckpt"))
        ranks = self.move("pp_dp", "pp_dp", ours=True)
        self.assertLessEqual(sum(each["read"] for each in ranks), 1.05 * sum(each["loaded"] for each in ranks) / 2)

    def test_what_ranks_read_together_is_proven_without_reading_it_again(self):
        answers = live_ranks.run(WORLD, proven_together, self.path("ckpt"))
        self.assertEqual(["whole"] * WORLD, [first for first, _ in answers])
        self.assertIn("damaged", [second for _, second in answers])

    def test_what_one_rank_refuses_all_do(self):
        for answer in live_ranks.run(WORLD, refused_on_all, self.path("ckpt"), "fsdp2", "ddp"):
            self.assertIn("rank 2", answer)
            self.assertIn("more (buffer)", answer)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
