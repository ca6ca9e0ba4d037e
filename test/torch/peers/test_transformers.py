"""transformers loads the Hugging Face folders that `pawl convert` writes, by itself: the same weights bit for bit, the
same logits, nothing missing, nothing unexpected, nothing made up.

Needs the environment of tools/setup-peers and a built pawl: run by tools/test-long, or by hand as
  PAWL=build/bin/pawl PYTHONPATH=python "$(tools/setup-peers --python)" -B test/torch/peers/test_transformers.py
"""
import io
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"})

try:
    import transformers
except ImportError:
    print("transformers is not in this environment: tools/setup-peers")
    sys.exit(77)
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict  # noqa: E402
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MixtralConfig, Qwen2Config  # noqa: E402

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAWL = os.path.abspath(os.environ.get("PAWL", ROOT / "build" / "bin" / "pawl"))
SIZES = {"vocab_size": 67, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1,
         "eos_token_id": 2}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SIZES, tie_word_embeddings=False),
    "llama_tied": lambda: LlamaConfig(**SIZES, tie_word_embeddings=True),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "gpt2": lambda: GPT2Config(vocab_size=67, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1,
                               eos_token_id=2),
}
WORDS = torch.arange(24).reshape(2, 12)


def trained(name: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model of random weights after a step of training."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(WORDS, labels=WORDS).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return model.eval(), optimizer


def loaded(folder: pathlib.Path) -> torch.nn.Module:
    """What transformers makes of a folder, without a word of complaint."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    finally:
        logger.removeHandler(handler)
    wrong = {key: value for key, value in info.items() if value}
    assert not wrong, wrong
    for word in ("newly initialized", "UNEXPECTED", "MISSING", "MISMATCH", "corrupted", "not used"):
        assert word not in said.getvalue(), said.getvalue()
    return model.eval()


def megatron_state(model, rows: int) -> dict[str, torch.Tensor]:
    """The model in Megatron-Core's names and forms, its vocabulary padded to `rows`: put together here, element by
    element of nothing that pawl has."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)  # experts one by one
        state = load_file(f"{folder}/model.safetensors")
    config = model.config
    size = config.hidden_size // config.num_attention_heads
    out = {}

    def padded(value):
        return torch.cat([value, torch.zeros(rows - len(value), value.shape[1])])

    def fused(*parts):  # of each group its queries, its key, its value
        groups = len(parts[1]) // size
        return torch.cat([piece for group in zip(*(part.chunk(groups) for part in parts), strict=False)
                          for piece in group])

    if "transformer.wte.weight" in state:
        out["embedding.word_embeddings.weight"] = padded(state["transformer.wte.weight"])
        out["embedding.position_embeddings.weight"] = state["transformer.wpe.weight"]
        names = {"ln_1": "input_layernorm", "ln_2": "pre_mlp_layernorm", "attn.c_attn": "self_attention.linear_qkv",
                 "attn.c_proj": "self_attention.linear_proj", "mlp.c_fc": "mlp.linear_fc1",
                 "mlp.c_proj": "mlp.linear_fc2"}
        for layer in range(config.n_layer):
            for theirs, megatrons in names.items():
                for part in ("weight", "bias"):
                    value = state[f"transformer.h.{layer}.{theirs}.{part}"].T
                    value = fused(*value.chunk(3)) if theirs == "attn.c_attn" else value
                    out[f"decoder.layers.{layer}.{megatrons}.{part}"] = value.contiguous()
        for part in ("weight", "bias"):
            out[f"decoder.final_layernorm.{part}"] = state[f"transformer.ln_f.{part}"]
        return out
    out["embedding.word_embeddings.weight"] = padded(state["model.embed_tokens.weight"])
    out["output_layer.weight"] = padded(state["lm_head.weight"])
    out["decoder.final_layernorm.weight"] = state["model.norm.weight"]
    for layer in range(config.num_hidden_layers):
        here, there = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        out[f"{there}input_layernorm.weight"] = state[f"{here}input_layernorm.weight"]
        out[f"{there}pre_mlp_layernorm.weight"] = state[f"{here}post_attention_layernorm.weight"]
        out[f"{there}self_attention.linear_proj.weight"] = state[f"{here}self_attn.o_proj.weight"]
        out[f"{there}self_attention.linear_qkv.weight"] = fused(
            *(state[f"{here}self_attn.{which}_proj.weight"] for which in "qkv"))
        if f"{here}mlp.gate_proj.weight" in state:
            out[f"{there}mlp.linear_fc1.weight"] = torch.cat(
                [state[f"{here}mlp.{which}_proj.weight"] for which in ("gate", "up")])
            out[f"{there}mlp.linear_fc2.weight"] = state[f"{here}mlp.down_proj.weight"]
            continue
        out[f"{there}mlp.router.weight"] = state[f"{here}block_sparse_moe.gate.weight"]
        for expert in range(config.num_local_experts):
            theirs = f"{here}block_sparse_moe.experts.{expert}."
            megatrons = f"{there}mlp.experts.local_experts.{expert}."
            out[f"{megatrons}linear_fc1.weight"] = torch.cat([state[f"{theirs}w1.weight"], state[f"{theirs}w3.weight"]])
            out[f"{megatrons}linear_fc2.weight"] = state[f"{theirs}w2.weight"]
    return out


class TransformersLoads(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)

    def pawl(self, source: pathlib.Path, *options: str, code: int = 0) -> tuple[pathlib.Path, dict]:
        """The converted folder, and what the command said."""
        target = self.folder / f"converted_{len(list(self.folder.iterdir()))}"
        ran = subprocess.run([PAWL, "convert", str(source), str(target), "--to", "huggingface", "-o", "json", *options],
                             capture_output=True, text=True)
        self.assertEqual(ran.returncode, code, ran.stderr + ran.stdout)
        self.assertEqual(target.exists(), code == 0)
        return target, json.loads(ran.stdout)

    def config_of(self, model) -> str:
        folder = self.folder / "config"
        model.config.save_pretrained(folder)
        return str(folder / "config.json")

    def same(self, model, other) -> None:
        wanted, found = model.state_dict(), other.state_dict()
        self.assertEqual(set(found), set(wanted))
        for key, value in wanted.items():
            self.assertEqual(found[key].dtype, value.dtype, key)
            self.assertTrue(torch.equal(found[key], value), f"{key} differs")
        with torch.no_grad():
            self.assertTrue(torch.equal(other(WORDS).logits, model(WORDS).logits), "other logits")

    def sources(self, model, optimizer):
        """The training's state as torch.save, DCP and pawl save it."""
        weights, moments = get_state_dict(model, optimizer)
        torch.save(model.state_dict(), self.folder / "weights.pt")
        yield "torch.save", self.folder / "weights.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, self.folder / "all.pt")
        yield "torch.save of a training", self.folder / "all.pt"
        dcp.save({"model": weights, "optim": moments}, checkpoint_id=self.folder / "dcp", no_dist=True)
        yield "DCP", self.folder / "dcp"
        dcp.save({"model": weights}, checkpoint_id=self.folder / "dcp_weights", no_dist=True)
        yield "DCP of weights under a key", self.folder / "dcp_weights"
        dcp.save(weights, checkpoint_id=self.folder / "dcp_flat", no_dist=True)
        yield "DCP of weights", self.folder / "dcp_flat"
        model.save_pretrained(self.folder / "pretrained")
        yield "transformers", self.folder / "pretrained"
        import pawl.torch
        pawl.torch.save(self.folder / "pawl", model, optimizer)
        yield "pawl.torch.save", self.folder / "pawl"

    def check(self, name: str) -> None:
        model, optimizer = trained(name)
        config = self.config_of(model)
        for source, path in self.sources(model, optimizer):
            with self.subTest(model=name, source=source):
                target, said = self.pawl(path, "--config", config)
                self.assertTrue((target / "model.safetensors").exists(), "one file, no index")
                self.same(model, loaded(target))
                target, said = self.pawl(path, "--config", config, "--max-file-size", "20kB")
                self.assertGreater(len(said["files"]), 3)
                self.assertTrue((target / "model.safetensors.index.json").exists())
                self.same(model, loaded(target))

    def test_llama(self):
        self.check("llama")

    def test_llama_with_tied_embeddings(self):
        self.check("llama_tied")

    def test_qwen2(self):
        self.check("qwen2")

    def test_mixtral(self):
        self.check("mixtral")

    def test_gpt2(self):
        self.check("gpt2")

    def test_the_config_beside_the_source_comes_along(self):
        model, _ = trained("mixtral")
        model.save_pretrained(self.folder / "pretrained")
        target, _ = self.pawl(self.folder / "pretrained")
        self.assertEqual((target / "config.json").read_bytes(), (self.folder / "pretrained/config.json").read_bytes())
        self.same(model, loaded(target))

    def test_without_a_config_it_says_so(self):
        model, _ = trained("llama")
        torch.save(model.state_dict(), self.folder / "weights.pt")
        target, said = self.pawl(self.folder / "weights.pt")
        self.assertTrue(any("no config.json" in note for note in said["notes"]), said["notes"])
        self.assertFalse((target / "config.json").exists())

    def test_other_types(self):
        for name in ("llama_tied", "mixtral"):
            model, _ = trained(name)
            torch.save(model.state_dict(), self.folder / "weights.pt")
            model.config.dtype = torch.float32  # which the converted one must not say
            target, _ = self.pawl(self.folder / "weights.pt", "--config", self.config_of(model), "--dtype", "bfloat16")
            model.save_pretrained(self.folder / "pretrained")  # transformers' own cast leaves its rotary tables alone
            narrow = AutoModelForCausalLM.from_pretrained(self.folder / "pretrained", dtype=torch.bfloat16)
            self.same(narrow.eval(), loaded(target))

    def test_a_head_that_only_the_checkpoint_ties(self):
        """Saved by a program that tied the head itself: the config's model has a head of its own, which must not be
        made up."""
        model, _ = trained("llama")
        model.lm_head.weight = model.model.embed_tokens.weight
        torch.save(model.state_dict(), self.folder / "weights.pt")
        target, _ = self.pawl(self.folder / "weights.pt", "--config", self.config_of(model))
        self.same(model, loaded(target))

    def test_what_does_not_fit_is_refused(self):
        model, _ = trained("llama")
        config = self.config_of(model)
        whole = model.state_dict()
        for name, change, word in (
                ("missing", {"model.layers.1.mlp.up_proj.weight": None}, "model.layers.1.mlp.up_proj.weight"),
                ("no head", {"lm_head.weight": None}, "lm_head.weight"),
                ("shape", {"model.norm.weight": torch.zeros(31)}, "[31]"),
                ("padded", {"model.embed_tokens.weight": torch.zeros(128, 32)}, "[128,32]")):
            with self.subTest(name):
                state = {key: change.get(key, value) for key, value in whole.items()}
                torch.save({key: value for key, value in state.items() if value is not None}, self.folder / "bad.pt")
                _, said = self.pawl(self.folder / "bad.pt", "--config", config, code=1)
                self.assertIn(word, said["error"])

    def test_models_in_megatrons_names(self):
        for name in ("llama", "mixtral", "gpt2"):
            with self.subTest(name):
                model, _ = trained(name)
                torch.save({"model": megatron_state(model, rows=128)}, self.folder / "megatron.pt")
                target, said = self.pawl(self.folder / "megatron.pt", "--config", self.config_of(model))
                self.assertEqual(said["family"], {"gpt2": "gpt"}.get(name, name))
                self.same(model, loaded(target))


if __name__ == "__main__":
    unittest.main()
