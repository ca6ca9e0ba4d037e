"""Files that name one long string, or one large list, very often: `pawl inspect` and `pawl verify` reject each with
file, reason and remedy, and take no more memory and time than its bytes deserve. Needs no PyTorch."""
import json
import os
import shutil
import struct
import subprocess
import tempfile
import time
import unittest
import zipfile

import harness
from harness import PAWL

LONG = 256 << 10  # bytes of a name
MANY = 20_000  # times it is named: as copies five gigabytes
SECONDS_MAX = 30
MEMORY_BYTES_MAX = 700 << 20  # the sanitizers' own included
SHARED = "names and lists that many of its values share"
FAILED, DEGRADED = 1, 4


def text(value):
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def put(number):
    return b"r" + struct.pack("<I", number)


def get(number):
    return b"j" + struct.pack("<I", number)


def number(value):
    return b"J" + struct.pack("<i", value)


def named(module, name):
    return f"c{module}\n{name}\n".encode()


def storage(key="0", location="cpu", kind="FloatStorage", count=1):
    return b"(" + text("storage") + named("torch", kind) + text(key) + text(location) + number(count) + b"tQ"


def tensor(source=None, size=(1,), stride=(1,), more=b""):
    def sizes(values):
        return b"(" + b"".join(number(value) for value in values) + b"t"
    return (named("torch._utils", "_rebuild_tensor_v2") + b"(" + (source or storage()) + number(0) + sizes(size) +
            sizes(stride) + b"\x89" + named("collections", "OrderedDict") + b")R" + more + b"tR")


def remembered(value, at):
    """Puts the value into the memo, and takes it off the stack."""
    return value + put(at) + b"0"


KEY, TENSOR, OTHER = range(3)
# Limits that count values are out of reach: there are many.
FILLER = b"]0" * 200_000
SHARED_VALUES = FILLER + remembered(text("n" * LONG), KEY) + remembered(tensor(), TENSOR)


def pickled(body):
    return b"\x80\x02" + body + b"."


def many(what, count=MANY):
    return b"(" + what * count


def dict_of(pairs):
    return b"}(" + b"".join(key + value for key, value in pairs) + b"u"


RECORDS = {"data/0": b"1234", "data/1": bytes(8)}


def archive(path, object_pickle, records=None, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as out:
        out.writestr("a/data.pkl", object_pickle)
        out.writestr("a/byteorder", "little")
        for name, content in (records or RECORDS).items():
            out.writestr("a/" + name, content)
        out.writestr("a/version", "3\n")


def entry(**meta):
    return {"path_name": "w", "tensor_meta": {"dtype": 7, **meta}}


def program(path, tables, weight):
    """An archive of torch.export, whose programs share one record."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as out:
        out.writestr("p/archive_format", "pt2")
        for name, config in tables.items():
            out.writestr(f"p/data/weights/{name}_weights_config.json", json.dumps({"config": config}))
        out.writestr("p/data/weights/w", weight)
        out.writestr("p/byteorder", "little")


def made(module, name, fields):
    return named(module, name) + b")\x81" + dict_of([(text(key), value) for key, value in fields.items()]) + b"b"


def tuple_of(*values):
    return b"(" + b"".join(values) + b"t"


def dcp_metadata(count):
    """As many tensors without elements, whose keys were made of one long path."""
    module = "torch.distributed.checkpoint.metadata"
    properties = named(module, "TensorProperties") + b")\x81" + tuple_of(named("torch", "float32")) + b"b"
    none = tuple_of(number(0))
    chunk = made(module, "ChunkStorageMetadata", {"offsets": none, "sizes": none})
    entry_of_all = made(module, "TensorStorageMetadata", {"properties": properties, "size": none,
                                                          "chunks": b"](" + chunk + b"e"})
    keys = [text(f"k{i}") for i in range(count)]
    shared = SHARED_VALUES + remembered(tuple_of(get(KEY)), OTHER) + remembered(entry_of_all, TENSOR)
    return shared + made(module, "Metadata", {
        "state_dict_metadata": dict_of([(key, get(TENSOR)) for key in keys]),
        "planner_data": dict_of([(key, get(OTHER)) for key in keys]), "storage_data": b"}"})


def model_states(count):
    """A rank's file of DeepSpeed whose groups share one dict of shapes."""
    shapes = dict_of([(text(f"p{i}"), tuple_of(number(1))) for i in range(5000)])
    return remembered(shapes, OTHER) + dict_of([
        (text("module"), dict_of([(text("w"), tensor())])), (text("dp_world_size"), number(1)),
        (text("mp_world_size"), number(1)), (text("param_shapes"), b"]" + many(get(OTHER), count) + b"e")])


def sharded_tensors(count):
    """As many of ShardedTensor as given, which have one list of 200 shards."""
    module, shards = "torch.distributed._shard", 200
    local = tensor()
    each = [made(module + ".sharded_tensor.shard", "Shard", {"tensor": local, "metadata": made(
        module + ".metadata", "ShardMetadata", {"shard_offsets": tuple_of(number(at)), "shard_sizes": tuple_of(
            number(1))})}) for at in range(shards)]
    metadata = made(module + ".sharded_tensor.metadata", "ShardedTensorMetadata", {"size": tuple_of(number(shards))})
    state = tuple_of(b"](" + b"".join(each) + b"e", metadata, b"N")
    arguments = tuple_of(b"N", named("torch", "float32"), tuple_of(number(shards)), tuple_of(number(1)), number(0),
                         b"NN\x89")
    whole = tuple_of(named("torch._utils", "_rebuild_wrapper_subclass"),
                     named(module + ".sharded_tensor.api", "ShardedTensor"), arguments, state)
    one = named("torch._tensor", "_rebuild_from_type_v2") + get(OTHER) + b"R"
    return FILLER + remembered(whole, OTHER) + b"](" + one * count + b"e"


def optimizer_of(states, parameters=()):
    """Each state with its key."""
    group = dict_of([(text("params"), b"](" + b"".join(parameters) + b"e")])
    return dict_of([(text("model"), tensor()), (text("optimizer"), dict_of([
        (text("state"), b"}(" + b"".join(states) + b"u"), (text("param_groups"), b"](" + group + b"e")]))])


def zstd(runs):
    """A frame of pairs of bytes and how often they come: a run of one byte takes four bytes for 128 KiB."""
    size = sum(len(content) * times for content, times in runs)
    out = [b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", size)]
    for content, times in runs:
        assert times == 1 or len(content) == 1
        for at in range(0, times, 128 << 10):
            length = len(content) if times == 1 else min(128 << 10, times - at)
            out.append(struct.pack("<I", (times > 1) << 1 | length << 3)[:3] + content)
    return b"".join(out) + b"\x01\x00\x00"


def packed_numbers(count):
    """A stream of torch.save: a list of one integer so many times."""
    head = pickled(b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") + pickled(b"M\xe9\x03") + pickled(
        dict_of([(text("little_endian"), b"\x88")]))
    return zstd([(head + b"\x80\x02](K\x01", 1), (b"2", count - 1), (b"e." + pickled(b"]"), 1)])


def dcp_objects(count, stored_bytes):
    """The metadata of an optimizer whose parameters keep an object each, one after another in one file."""
    module = "torch.distributed.checkpoint."
    keys = [f"optim.state.{i}.losses" for i in range(count)] + ["optim.param_groups"]
    paths = [tuple_of(text("optim"), text("state"), number(i), text("losses")) for i in range(count)]
    paths.append(tuple_of(text("optim"), text("param_groups")))

    def place(at):
        return made(module + "filesystem", "_StorageInfo", {
            "relative_path": text("__0_0.distcp"), "offset": number(at * stored_bytes), "length": number(stored_bytes),
            "transform_descriptors": b"](" + text("zstd") + b"e"})

    def index(key):
        return made(module + "metadata", "MetadataIndex", {"fqn": text(key), "offset": b"N", "index": b"N"})

    entry_of_all = remembered(named(module + "metadata", "BytesStorageMetadata") + b")\x81", OTHER)
    return entry_of_all + made(module + "metadata", "Metadata", {
        "state_dict_metadata": dict_of([(text(key), get(OTHER)) for key in keys]),
        "planner_data": dict_of([(text(key), path) for key, path in zip(keys, paths, strict=True)]),
        "storage_data": dict_of([(index(key), place(at)) for at, key in enumerate(keys)])})


def pickles():
    """Name and object. In each a value of 256 KiB is named 20,000 times, or what takes as much."""
    key, one = get(KEY), get(TENSOR)
    yield "a key of a dict", SHARED_VALUES + b"}" + many(key + one) + b"u"
    yield "a key above a list of tensors", SHARED_VALUES + dict_of([(key, b"]" + many(one) + b"e")])
    yield "an attribute", SHARED_VALUES + named("m", "C") + b")\x81}" + many(key + one) + b"ub"
    many_objects = many(named("m", "C") + b")\x81" + get(OTHER) + b"b", 2000)
    yield "the state of many objects", SHARED_VALUES + remembered(
        b"}" + many(key + one, 400) + b"u", OTHER) + b"]" + many_objects + b"e"
    yield "a step of an optimizer", SHARED_VALUES + dict_of([(text("model"), one), (text("optimizer"), dict_of([
        (text("state"), remembered(dict_of([(text("step"), number(1))]), OTHER) + b"}" + many(key + get(OTHER)) + b"u"),
        (text("param_groups"), b"]")]))])
    group = remembered(dict_of([(text("params"), b"]" + many(get(KEY), 2000) + b"e")]), OTHER)
    yield "the parameters of many groups", FILLER + remembered(text("n" * 4000), KEY) + remembered(
        tensor(), TENSOR) + group + dict_of([(text("model"), one), (text("state"), b"}"),
                                             (text("param_groups"), b"]" + many(get(OTHER), 2000) + b"e")])
    held = dict_of([(text("params"), b"]" + many(one) + b"e")])
    yield "parameters that are the model's", SHARED_VALUES + dict_of([(key, one), (text("optimizer"), dict_of(
        [(text("state"), b"}"), (text("param_groups"), b"](" + held + b"e")]))])
    state = dict_of([(one, b"}" + many(key + one) + b"u")])
    yield "a state that is keyed by the parameter", SHARED_VALUES + dict_of([(text("model"), one), (text(
        "optimizer"), dict_of([(text("state"), state), (text("param_groups"), b"](" + dict_of(
            [(text("params"), b"](" + one + b"e")]) + b"e")]))])
    yield "the shards of many tensors", sharded_tensors(20_000)
    numbers = remembered(b"](" + b"K\x01" * (8 * LONG) + b"e", OTHER)
    shared = dict_of([(text("losses"), get(OTHER))])
    parameters = b"".join(remembered(tensor(), OTHER + 1 + i) for i in range(MANY))
    yield "numbers of many parameters that are held", numbers + parameters + optimizer_of(
        (get(OTHER + 1 + i) + shared for i in range(MANY)), (get(OTHER + 1 + i) for i in range(MANY)))


def resident_bytes(pid):
    """The most that it had in memory so far."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) << 10
    return 0  # it has just ended


class HostileFilesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="pawl-test-")
        self.addCleanup(shutil.rmtree, self.folder, True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_pawl(self, *arguments):
        """(exit code, what it said), within the memory and the time."""
        deadline = time.monotonic() + SECONDS_MAX
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen([PAWL, *arguments], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            while process.poll() is None:
                memory_bytes = resident_bytes(process.pid)
                if memory_bytes > MEMORY_BYTES_MAX or time.monotonic() > deadline:
                    process.kill()
                    process.wait()
                    self.fail(f"{memory_bytes >> 20} MiB in memory, {SECONDS_MAX - deadline + time.monotonic():.0f} s")
                time.sleep(0.01)
            said.seek(0)
            return process.returncode, said.read().decode(errors="replace")

    def rejects(self, path, *words, code=FAILED):
        for command in ("inspect", "verify"):
            ended, said = self.run_pawl(command, path)
            self.assertEqual(code, ended, said[:2000])
            for word in (os.path.basename(path), *words):
                self.assertIn(word, said)
            self.assertLess(len(said), 8000)

    def test_values_that_are_shared(self):
        for name, body in pickles():
            with self.subTest(name):
                path = self.path("shared.pt")
                archive(path, pickled(body))
                self.rejects(path, f"data.pkl: {SHARED}")

    def test_a_stream(self):
        path = self.path("shared.pt")
        with open(path, "wb") as out:
            out.write(pickled(b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") + pickled(b"M\xe9\x03"))
            out.write(pickled(dict_of([(text("little_endian"), b"\x88")])))
            at = out.tell()
            out.write(pickled(SHARED_VALUES + b"}" + many(get(KEY) + get(TENSOR)) + b"u"))
            out.write(pickled(b"](" + text("0") + b"e") + struct.pack("<q", 1) + b"1234")
        self.rejects(path, f"pickle at {at}: {SHARED}")

    def test_globals_of_one_long_name(self):
        path = self.path("globals.pt")
        body = remembered(text("n" * LONG), KEY) + b"](" + (get(KEY) + get(KEY) + b"\x93") * MANY + b"e"
        archive(path, pickled(body))
        self.rejects(path, "data.pkl: offset ", f"a global's name of {LONG} bytes", code=DEGRADED)

    def test_values_that_are_made_of_what_is_stored(self):
        path = self.path("conjugated.pt")
        one = tensor(storage("1", kind="ComplexFloatStorage"), (7 << 20,), (0,), dict_of([(text("conj"), b"\x88")]))
        archive(path, pickled(b"](" + one * 100 + b"e"))
        self.rejects(path, "tensor 1: conjugated and negated tensors have more bytes than their file", code=DEGRADED)

    def test_keys_of_one_long_path(self):
        with open(self.path(".metadata"), "wb") as out:
            out.write(pickled(dcp_metadata(MANY)))
        self.rejects(self.folder, ".metadata: tensor k", SHARED)

    def test_objects_that_unpack_to_many_numbers(self):
        for numbers, count in ((16 << 20, 8), (3 << 20, 60)):  # large ones, and many
            with self.subTest(count=count):
                packed = packed_numbers(numbers)
                with open(self.path("__0_0.distcp"), "wb") as out:
                    out.write(packed * (count + 1))
                with open(self.path(".metadata"), "wb") as out:
                    out.write(pickled(dcp_objects(count, len(packed))))
                self.rejects(self.folder, "__0_0.distcp: object optim.state.", SHARED)

    def test_groups_of_one_dict(self):
        os.mkdir(self.path("global_step1"))
        archive(self.path("global_step1/mp_rank_00_model_states.pt"), pickled(model_states(4000)))
        with open(self.path("latest"), "w", encoding="utf-8") as out:
            out.write("global_step1")
        self.rejects(self.folder, f"mp_rank_00_model_states.pt: data.pkl: {SHARED}")

    def test_a_program_of_many_names_below_a_long_one(self):
        path = self.path("program.pt2")
        program(path, {name * 3000: {f"w{i}": entry() for i in range(MANY)} for name in "ab"}, b"1234")
        self.rejects(path, SHARED)

    def test_a_pickle_that_unpacks_to_very_much(self):
        path = self.path("packed.pt")
        archive(path, pickled(b"]0" * (64 << 20) + b"N"), compression=zipfile.ZIP_DEFLATED)
        self.rejects(path, "record a/data.pkl", "that unpack to")

    def test_a_weight_whose_record_is_empty(self):
        path, out = self.path("program.pt2"), self.path("out.safetensors")
        program(path, {"m": {"w": entry(sizes=[{"as_int": 2}], strides=[{"as_int": 1}])}}, b"")
        code, said = self.run_pawl("verify", path)
        converted, why = self.run_pawl("convert", path, out, "--to", "safetensors")
        self.assertEqual((DEGRADED, DEGRADED), (code, converted), said + why)
        for words in (said, why):
            self.assertIn("tensor w: its record p/data/weights/w has no bytes, and its shape says 2 elements", words)
        self.assertFalse(os.path.exists(out))


if __name__ == "__main__":
    harness.main()
