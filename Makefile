# Every target installs what it needs first, and prints nothing if it is already there.
#
#   make demo    four nodes and a spare on this machine; one is killed, the training goes on, bit for bit
#                make demo ARGS="--seed 7 --kills 3 --node leader"
#                make demo ARGS="--checkpoint DIR --at-once 2"
#   make test    all tests, sanitizers included; the last line counts them
#   make test-long   what takes many minutes, and what needs DeepSpeed, transformers and Megatron-Core (installed automatically)
#   make check   the fast lane: style, the tree of sources, documents, Python; build and unit tests
#   make build   the command at build/bin/pawl and the library at build/lib
#   make wheel   a wheel with the package, its libraries and the command, in build/wheel: pip install --force-reinstall --no-deps build/wheel/pawl-*.whl
#   make sim     simulates a cluster for each of SEEDS seeds (1000), with faults; prints those that fail, shortened
#   make bench   what protection costs and how long recovery takes, as ratios
#   make bench-pytorch   the same for a training in PyTorch, against torchrun, torch.save and dcp.async_save
#   make bench-reshape   reading, moving and converting checkpoints, against what this machine's disk and memory can do
#   make bench-memory    capture and restore of 3 GiB against what this machine's memory can do, and against torch
#   make bench-control   how long the control takes for the reports of 10,000 nodes
#   make bench-universal   universal folders, and saves and loads of a training, against the same and against DeepSpeed and DCP
#   make bench-scale   what a recovery costs the control, its leader and each node in jobs of 10 to 10,000 nodes, in memory
#   make bench-protection   how long a protection plan for up to 100,000 seats takes
#   make bench-erasure   encoding and rebuilding of parity against this machine's memory, and against ISA-L
#   make bench-storage   checkpoints of a job to the disk and back, against raw O_DIRECT, and what they cost trainers
#   make bench-spread   a step's way into another node's memory, against raw TCP
#   make fuzz-smoke   every fuzzer for some seconds (clang)
#   make format  formats our sources, then checks style
#   make clean   removes build/

export JOBS ?= $(shell nproc)
ARGS ?=
SECONDS_PER_FUZZER ?= 10
SEEDS ?= 1000

.PHONY: demo test test-long check build wheel sim bench bench-pytorch bench-reshape bench-scale bench-control bench-protection bench-spread bench-storage bench-memory bench-erasure bench-universal fuzz-smoke clean format setup
.DEFAULT_GOAL := build

setup:
	@tools/setup

build: setup
	@tools/build main product

wheel: build
	@rm -f build/wheel/pawl-*.whl
	@python3 -B python/wheel_backend.py build/wheel

demo: build
	@python3 -B tools/demo/demo.py $(ARGS)

test: setup
	@tools/test all

test-long: setup
	@tools/test-long $(ARGS)

check: setup
	@tools/test checks unit

sim: setup
	@tools/build main sim
	@build/bin/sim --seeds $(SEEDS) $(ARGS)

bench: setup
	@tools/build main all
	@bench/thread/run $(ARGS)

bench-pytorch: build
	@bench/pytorch/run $(ARGS)

bench-reshape: setup
	@tools/build main reshape_bench
	@bench/reshape/run $(ARGS)

bench-scale: setup
	@tools/build main scale_bench
	@bench/scale/run $(ARGS)

bench-memory: setup
	@tools/build main memory_bench
	@bench/memory/run $(ARGS)

bench-control: build
	@tools/build main control_bench
	@bench/control/run $(ARGS)

bench-spread: setup
	@tools/build main spread_bench
	@build/main/bench/spread/spread_bench $(ARGS)

bench-storage: setup
	@tools/build main storage_bench
	@bench/storage/run $(ARGS)

bench-erasure: setup
	@tools/build main erasure_bench
	@bench/erasure/run $(ARGS)

bench-protection: setup
	@tools/build main protection_bench
	@build/main/bench/protection/protection_bench $(ARGS)

bench-universal: build
	@tools/build main universal_floors
	@bench/universal/run $(ARGS)

fuzz-smoke:
	@tools/setup --developer
	@tools/build fuzz fuzzers
	@tools/fuzz-smoke build/fuzz/fuzz $(SECONDS_PER_FUZZER)

format:
	@tools/setup --developer
	@tools/check-style --fix

clean:
	rm -rf build
