"""Checkpoints as training libraries write them, made by the libraries: transformers' Trainer, PEFT, Accelerate (two
models; FSDP2 in two folders, in two files) and Lightning. Each is one source with weights and optimizer: what pawl
reads of it is what the live training held, bit for bit, and a live training that pawl.torch.load fills goes on with the
same losses.

Needs the environment of tools/setup-peers and a built pawl: run by tools/test-long, or by hand as
  PAWL=build/bin/pawl PYTHONPATH=python "$(tools/setup-peers --python)" -B test/torch/peers/test_training_folders.py
"""
import inspect
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "test/fixtures/torch/L_training_folders"))
PAWL = os.path.abspath(os.environ.get("PAWL", ROOT / "build" / "bin" / "pawl"))

try:
    import accelerate
    import generate
    import peft
except ImportError as error:
    print(f"{error.name} is not in this environment: tools/setup-peers")
    sys.exit(77)
import torch  # noqa: E402
import transformers  # noqa: E402
from accelerate.utils import fsdp_utils  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

import pawl.torch  # noqa: E402
from pawl.errors import Refused  # noqa: E402

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
WORDS = torch.arange(24).reshape(2, 12) % 20


def words_loss(model):
    return model(input_ids=WORDS, labels=WORDS).loss


def losses(step, optimizers, count=3):
    """Of `count` more steps."""
    out = []
    for _ in range(count):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = step()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        out.append(loss.item())
    return out


class TrainingFolders(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def pawl(self, *words, code=0):
        ran = subprocess.run([PAWL, *map(str, words), "-o", "json"], capture_output=True, text=True)
        self.assertEqual(ran.returncode, code, ran.stderr + ran.stdout)
        return json.loads(ran.stdout)

    def check_commands(self, source, fmt, names=None, golden=None):
        """inspect, verify, convert and diff, and what was converted against the golden. What was inspected."""
        by_names = ["--param-names", names] if names else []
        seen = self.pawl("inspect", source, *by_names)
        self.assertEqual(seen["format"], fmt)
        self.assertEqual([], seen["problems"])
        self.assertEqual([], seen["unnamed"])
        self.pawl("verify", source, *by_names)
        target = self.folder / "converted.safetensors"
        self.pawl("convert", source, target, "--to", "safetensors", "--overwrite", *by_names)
        if golden:
            self.same(load_file(golden), load_file(target))
        if not names:
            self.pawl("diff", source, target)
        return seen

    def same(self, wanted, found):
        self.assertEqual(set(wanted), set(found))
        for key, value in wanted.items():
            self.assertEqual(value.dtype, found[key].dtype, key)
            self.assertTrue(torch.equal(value, found[key]), key)

    def fact(self, seen, key):
        return dict(seen["facts"])[key] if isinstance(seen["facts"], list) else seen["facts"][key]

    # Trainer and PEFT.

    def check_trainer(self, model, fresh, fmt, rename=lambda name: name):
        trainer = generate.trainer_of(self.folder / "run", model)
        trainer.train()
        checkpoint = self.folder / "run" / "checkpoint-3"
        live, optimizer = trainer.model, generate.optimizer_of(trainer)
        generate.write_names(self.folder / "names.json", optimizer, live, rename)
        seen = self.pawl("inspect", checkpoint)
        self.assertIn("--param-names", " ".join(seen["unnamed"]))
        self.assertIn("training_args.bin", seen["objects"])
        refused = self.pawl("convert", checkpoint, self.folder / "numbered", "--to", "dcp", code=1)
        self.assertIn("--param-names", refused["error"])
        self.pawl("convert", checkpoint, self.folder / "weights", "--to", "huggingface")
        seen = self.check_commands(checkpoint, fmt, self.folder / "names.json")
        self.assertEqual(self.fact(seen, "step"), "3")
        converted = load_file(self.folder / "converted.safetensors")
        for name, parameter in live.named_parameters():
            for word, value in optimizer.state.get(parameter, {}).items():
                self.assertTrue(torch.equal(value, converted[f"{rename(name)}/{word}"]), f"{name} {word}")
        follows = generate.trainer_of(self.folder / "again", fresh)
        follows.create_optimizer()
        report = pawl.torch.load(checkpoint, follows.model, follows.optimizer)
        self.assertEqual([], report.missing)
        for name, parameter in live.named_parameters():
            twin = dict(follows.model.named_parameters())[name]
            if parameter.requires_grad:
                self.assertTrue(torch.equal(parameter, twin), name)
        self.assertEqual([group["lr"] for group in optimizer.param_groups if group["params"]],
                         [group["lr"] for group in follows.optimizer.param_groups if group["params"]])
        follows.model.train()
        expected = losses(lambda: words_loss(live.train()), [optimizer])
        self.assertEqual(expected, losses(lambda: words_loss(follows.model), [follows.optimizer]))
        return checkpoint, report

    def test_trainer(self):
        torch.manual_seed(11)
        fresh = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**generate.SIZES))
        checkpoint, _ = self.check_trainer(generate.language_model(), fresh, "transformers Trainer")
        shards = self.folder / "sharded"
        shutil.copytree(checkpoint, shards)
        (shards / "model.safetensors").unlink()
        transformers.AutoModelForCausalLM.from_pretrained(checkpoint).save_pretrained(shards, max_shard_size="3KB")
        self.assertTrue((shards / "model.safetensors.index.json").exists())
        torch_file = self.folder / "torch_file"
        shutil.copytree(checkpoint, torch_file)
        torch.save(load_file(torch_file / "model.safetensors"), torch_file / "pytorch_model.bin")
        (torch_file / "model.safetensors").unlink()
        for other in (shards, torch_file):
            names = self.folder / "names.json"
            self.check_commands(other, "transformers Trainer", names)
            self.pawl("diff", checkpoint, other, "--param-names", names)

    def test_trainer_with_peft(self):
        torch.manual_seed(7)
        fresh = generate.adapted_model()
        for parameter in fresh.parameters():
            if parameter.requires_grad:
                torch.nn.init.zeros_(parameter)
        _, report = self.check_trainer(generate.adapted_model(), fresh, "transformers Trainer with PEFT",
                                       generate.adapter_name)
        self.assertIn("the model below it stay", " ".join(report.notes))
        self.pawl("convert", self.folder / "run" / "checkpoint-3", self.folder / "store", "--to", "pawl",
                  "--param-names", self.folder / "names.json")
        follows = generate.trainer_of(self.folder / "third", generate.adapted_model())
        for parameter in follows.model.parameters():
            if parameter.requires_grad:
                torch.nn.init.zeros_(parameter)
        follows.create_optimizer()
        pawl.torch.load(self.folder / "store", follows.model, follows.optimizer)
        stored = load_file(self.folder / "converted.safetensors")
        optimizer = generate.optimizer_of(follows)
        for name, parameter in follows.model.named_parameters():
            if parameter.requires_grad:
                key = generate.adapter_name(name)
                self.assertTrue(torch.equal(stored[f"{key}/weight"], parameter), name)
                self.assertTrue(torch.equal(stored[f"{key}/exp_avg"], optimizer.state[parameter]["exp_avg"]), name)

    def test_lora_with_all_biases(self):
        """The adapter's file has the biases of the model below it, too: they are trained."""
        def made(seed):
            torch.manual_seed(seed)
            base = transformers.AutoModelForCausalLM.from_config(
                transformers.LlamaConfig(**generate.SIZES, attention_bias=True, mlp_bias=True))
            return peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], bias="all",
                                                             task_type="CAUSAL_LM", init_lora_weights=False))

        def fresh():
            model = made(7)
            for parameter in model.parameters():
                if parameter.requires_grad:
                    torch.nn.init.ones_(parameter)
            return model

        checkpoint, report = self.check_trainer(made(7), fresh(), "transformers Trainer with PEFT",
                                                generate.adapter_name)
        self.assertIn("the model below it stay", " ".join(report.notes))
        expected = load_file(checkpoint / "adapter_model.safetensors")
        self.assertTrue(any(name.endswith("q_proj.base_layer.bias") for name in expected), list(expected))
        for form in ("pawl", "dcp"):
            self.pawl("convert", checkpoint, self.folder / form, "--to", form, "--param-names",
                      self.folder / "names.json")
            follows = generate.trainer_of(self.folder / f"from {form}", fresh())
            follows.create_optimizer()
            pawl.torch.load(self.folder / form, follows.model, follows.optimizer)
            for name, parameter in follows.model.named_parameters():
                if parameter.requires_grad:
                    self.assertTrue(torch.equal(expected[generate.adapter_name(name)], parameter), f"{form} {name}")

    def test_adafactor(self):
        """Its state has Python numbers beside tensors, and words of its own."""
        trainer = generate.trainer_of(self.folder / "run", generate.language_model(), optim="adafactor")
        trainer.train()
        checkpoint, names = self.folder / "run" / "checkpoint-3", self.folder / "names.json"
        optimizer = generate.optimizer_of(trainer)
        generate.write_names(names, optimizer, trainer.model)
        for form in ("pawl", "dcp", "safetensors"):
            made = self.folder / f"{form}.out"
            self.pawl("convert", checkpoint, made, "--to", form, "--param-names", names)
            self.pawl("diff", checkpoint, made, "--param-names", names)
            self.pawl("convert", made, self.folder / "again.safetensors", "--to", "safetensors", "--overwrite")
            found = load_file(self.folder / "again.safetensors")
            for name, parameter in trainer.model.named_parameters():
                for word, value in optimizer.state[parameter].items():
                    if value is not None:
                        self.assertEqual(float(torch.as_tensor(value).sum()), float(found[f"{name}/{word}"].sum()),
                                         f"{form} {name} {word}")
        for source in (checkpoint, self.folder / "pawl.out", self.folder / "dcp.out"):
            torch.manual_seed(11)
            fresh = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**generate.SIZES))
            follows = generate.trainer_of(self.folder / "again", fresh, optim="adafactor")
            follows.create_optimizer()
            pawl.torch.load(source, follows.model, follows.optimizer)
            for (name, mine), twin in zip(trainer.model.named_parameters(), follows.model.parameters(), strict=True):
                self.assertTrue(torch.equal(mine, twin), name)
                state = generate.optimizer_of(follows).state[twin]
                for word, value in optimizer.state[mine].items():
                    if value is not None:
                        self.assertEqual(type(value), type(state[word]), word)
                        self.assertTrue(torch.equal(torch.as_tensor(value), torch.as_tensor(state[word])), word)

    def test_peft_is_not_asked_where_names_are_the_live_ones(self):
        """It gathers the model's whole state."""
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
        models = [peft.get_peft_model(generate.language_model(), config) for _ in range(2)]
        torch.save(models[0].state_dict(), self.folder / "live.pt")
        with unittest.mock.patch.object(peft, "get_peft_model_state_dict", side_effect=AssertionError("it was asked")):
            pawl.torch.load(self.folder / "live.pt", models[1])
        twins = models[1].state_dict()
        for name, tensor in models[0].state_dict().items():
            self.assertTrue(torch.equal(tensor, twins[name]), name)

    def test_other_kinds_of_adapters(self):
        lora = {"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
        for name, config, called in (
                ("a name of its own", peft.LoraConfig(**lora), "mine"),
                ("whole modules", peft.LoraConfig(modules_to_save=["lm_head"], **lora), "default"),
                ("embeddings", peft.LoraConfig(**{**lora, "target_modules": ["embed_tokens"]}), "default"),
                ("DoRA", peft.LoraConfig(use_dora=True, **lora), "default"),
                ("a prompt", peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), "default")):
            with self.subTest(name):
                made = [peft.get_peft_model(generate.language_model(), config, adapter_name=called) for _ in range(2)]
                for parameter in made[1].parameters():
                    if parameter.requires_grad:
                        torch.nn.init.ones_(parameter)
                trainers = [generate.trainer_of(self.folder / f"{name} {number}", model)
                            for number, model in enumerate(made)]
                trainers[0].train()
                trainers[1].create_optimizer()
                pawl.torch.load(self.folder / f"{name} 0" / "checkpoint-3", trainers[1].model, trainers[1].optimizer)
                optimizer, twins = generate.optimizer_of(trainers[0]), dict(trainers[1].model.named_parameters())
                for key, parameter in trainers[0].model.named_parameters():
                    if not parameter.requires_grad:
                        continue
                    self.assertTrue(torch.equal(parameter, twins[key]), key)
                    for word, value in optimizer.state[parameter].items():
                        self.assertTrue(torch.equal(value, trainers[1].optimizer.state[twins[key]][word]), key)

    # Accelerate.

    def test_accelerate_of_two_models(self):
        models, optimizers = generate.trained_by_accelerate(accelerate.Accelerator(cpu=True), self.folder)
        seen = self.pawl("inspect", self.folder / "state")
        self.assertEqual(seen["format"], "Accelerate")
        self.assertEqual(self.fact(seen, "step"), "2")
        generate.write_golden(self.folder / "golden.safetensors",
                              {"model_0.": models[0], "model_1.": models[1]}, optimizers)
        self.check_commands(self.folder / "state", "Accelerate", golden=self.folder / "golden.safetensors")
        torch.manual_seed(13)
        fresh = torch.nn.ModuleDict(dict(zip(("model_0", "model_1"), generate.adversaries(), strict=True)))
        for module in fresh.values():
            for parameter in module.parameters():
                torch.nn.init.normal_(parameter)
        follows = generate.adversaries_optimizers(*fresh.values())
        pawl.torch.load(self.folder / "state", fresh, follows)
        seen = torch.randn(3, 4)
        self.assertEqual(losses(lambda: models[1](models[0](seen)).square().mean(), optimizers),
                         losses(lambda: fresh["model_1"](fresh["model_0"](seen)).square().mean(), follows))

    def check_fsdp2(self, *how):
        generate.run_fsdp2(self.folder, *how)
        seen = self.check_commands(self.folder / "state", "Accelerate", golden=self.folder / "golden.safetensors")
        self.assertEqual(self.fact(seen, "step"), "2")
        model, optimizer = generate.sharded_model()
        pawl.torch.load(self.folder / "state", model, optimizer)
        golden = load_file(self.folder / "golden.safetensors")
        for name, parameter in model.named_parameters():
            self.assertTrue(torch.equal(golden[f"{name}/weight"], parameter), name)
            self.assertTrue(torch.equal(golden[f"{name}/exp_avg"], optimizer.state[parameter]["exp_avg"]), name)

    def test_accelerate_fsdp2_in_two_folders(self):
        self.check_fsdp2("SHARDED_STATE_DICT")
        shutil.rmtree(self.folder / "state" / "pytorch_model_fsdp_0")
        seen = self.pawl("inspect", self.folder / "state", code=4)
        self.assertIn("the weights are missing", " ".join(seen["problems"]))

    def test_accelerate_fsdp2_in_two_files(self):
        self.check_fsdp2("FULL_STATE_DICT")

    @unittest.skipUnless("use_dcp" in inspect.signature(fsdp_utils.save_fsdp_model).parameters,
                         "this Accelerate does not write files of ranks")
    def test_accelerate_fsdp2_in_files_of_ranks(self):
        self.check_fsdp2("SHARDED_STATE_DICT", True)
        (self.folder / "state" / "optimizer_0_rank1.bin").unlink()
        seen = self.pawl("inspect", self.folder / "state", code=4)
        self.assertIn("optimizer state: rank 1's file is missing", " ".join(seen["problems"]))

    # Lightning.

    def test_lightning(self):
        trainer, model = generate.trained_by_lightning(self.folder)
        source = self.folder / "last.ckpt"
        seen = self.pawl("inspect", source)
        self.assertEqual(self.fact(seen, "global_step"), "8")
        generate.write_golden(self.folder / "golden.safetensors", {"": model}, trainer.optimizers)
        self.check_commands(source, "torch.save", golden=self.folder / "golden.safetensors")
        fresh = generate.Adversarial()
        for parameter in fresh.parameters():
            torch.nn.init.normal_(parameter)
        follows = fresh.configure_optimizers()
        pawl.torch.load(source, fresh, follows)
        batch = torch.randn(3, 4)
        self.assertEqual(losses(lambda: model.second(model.first(batch)).square().mean(), trainer.optimizers),
                         losses(lambda: fresh.second(fresh.first(batch)).square().mean(), follows))

    # What is not whole.

    def test_an_optimizer_that_is_missing_is_refused_by_a_load_with_an_optimizer_alone(self):
        trainer = generate.trained_by_trainer(self.folder, generate.language_model())
        (self.folder / "checkpoint-3" / "optimizer.pt").unlink()
        self.pawl("inspect", self.folder / "checkpoint-3", code=4)
        with self.assertRaisesRegex(Refused, "optimizer state: its file is missing"):
            pawl.torch.load(self.folder / "checkpoint-3", trainer.model, generate.optimizer_of(trainer))
        pawl.torch.load(self.folder / "checkpoint-3", trainer.model)


if __name__ == "__main__":
    unittest.main()
