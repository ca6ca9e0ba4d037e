"""What the demo trains: a GPT in PyTorch, or a character model in C++. Both take the same flags, keep the same record
(examples/charlm/record.h), and run without pawl as well."""
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PARALLEL = ("ddp-zero1", "ddp", "fsdp2", "hsdp", "tp-fsdp2", "tp-hsdp")


class TrainerMissing(Exception):
    """This trainer can't be run here; the text says why."""


class Charlm:
    """The character model on libpawl alone (examples/charlm)."""

    name = "cpp"
    title = "charlm"
    parallel = PARALLEL[:1]
    defaults = {"steps": 400, "batch": 64, "width": 512}
    environment = {}        # added to a job under pawl
    plain_environment = {}  # added to the undisturbed run
    start_timeout_s = 60.0
    starting = None

    def __init__(self, programs):
        """`programs`: a folder with charlm and charlm_plain, or where the environment says that they are."""
        self.program, self.plain_program = (
            os.path.abspath(os.environ.get(name.upper(), os.path.join(programs, name)))
            for name in ("charlm", "charlm_plain"))
        for path in (self.program, self.plain_program):
            if not os.access(path, os.X_OK):
                raise TrainerMissing(f"{path} is not there; `make build` makes it")

    def flags(self, options):
        return [*shared_flags(options), "--hidden", str(options.width)]

    def with_pawl(self, options):
        return [self.program, *self.flags(options)]

    def plain(self, options):
        return [self.plain_program, *self.flags(options)]

    def start_faults(self, run, reference):
        """What the records of the processes' starts say against the claim; empty: nothing."""
        return []


class Gpt:
    """The GPT in PyTorch: one script, with pawl and without (examples/gpt)."""

    name = "gpt"
    title = "gpt"
    parallel = PARALLEL
    defaults = {"steps": 400, "batch": 4, "width": 96}
    start_timeout_s = 300.0
    starting = "each trainer loads PyTorch, the spare rehearses"

    def __init__(self, programs):
        """`programs`: the folder of the command; library and extension lie beside it, or where the environment says."""
        libraries = os.path.join(os.path.dirname(os.path.abspath(programs)), "lib")
        self.python = interpreter()
        self.script = os.path.join(ROOT, "examples", "gpt", "train.py")
        self.plain_environment = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "lo",
                                  "PYTHONPATH": ""}  # without the package: `import pawl` fails
        self.environment = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHON_EXEC": self.python,
                            "PYTHONPATH": os.path.join(ROOT, "python")}
        for key, name in (("PAWL_LIBRARY", "libpawl.so.0"), ("PAWL_C10D", "pawl_c10d.so")):
            self.environment[key] = os.environ.get(key, os.path.join(libraries, name))
            if not os.path.exists(self.environment[key]):
                raise TrainerMissing(f"{self.environment[key]} is not there; `make build` makes it where PyTorch is")

    def flags(self, options):
        return [*shared_flags(options), "--width", str(options.width), "--parallel", options.parallel]

    def with_pawl(self, options):
        return [self.script, *self.flags(options)]

    def plain(self, options):
        return [self.python, "-u", self.script, *self.flags(options)]

    def start_faults(self, run, reference):
        faults = [f"the reference's process {pid} had {start['backend']} for its group, and libpawl "
                  f"{'' if start['libpawl_mapped'] else 'not '}in its maps" for pid, start in reference.starts.items()
                  if start["backend"] != "gloo" or start["libpawl_mapped"]]
        if not reference.starts:
            faults.append("the reference recorded no start")
        faults += [f"process {pid} trained without pawl, on {start['backend']}" for pid, start in run.starts.items()
                   if "pawl" not in start["backend"] or not start["libpawl_mapped"]]
        return faults


TRAINERS = {trainer.name: trainer for trainer in (Gpt, Charlm)}


def shared_flags(options):
    data = ["--data", os.path.abspath(options.data)] if options.data else []
    return ["--steps", str(options.steps), "--seed", str(options.seed), "--batch", str(options.batch), *data]


def interpreter():
    """The Python that has torch."""
    found = subprocess.run([os.path.join(ROOT, "tools", "setup-torch"), "--python"], capture_output=True, text=True,
                           check=False)
    if found.returncode != 0:
        raise TrainerMissing(f"there is no PyTorch: {found.stderr.strip()}")
    return found.stdout.strip()


def choose(name, programs):
    """(the trainer of that name, why it is another one than usual). Without a name: the GPT, or where PyTorch can't be
    had the C++ trainer, with the reason. Raises TrainerMissing."""
    if name:
        return TRAINERS[name](programs), None
    try:
        return Gpt(programs), None
    except TrainerMissing as missing:
        return Charlm(programs), str(missing)
