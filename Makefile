# The two commands of the README are `make demo` and `make test`; both do all their own set-up.
VENV ?= .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest
EXTRA_PYTHONS ?= 3.10 3.13
QUICK := not full and not interop
# Test processes of `make test`; a file's tests stay in one.
WORKERS ?= 2

.PHONY: demo test test-all lint types quick left-out wire-pythons interop interop-env gradio full wheel-test bench docs pages base-image clean

demo: $(VENV)/.demo
	$(PY) examples/demo.py

test: lint types quick

test-all: $(VENV)/.dev base-image
	OPENENV_BASE_IMAGE=openenv-base:local $(PY) scripts/test_all.py

$(VENV)/bin/python:
	sh scripts/venv.sh $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml envs/echo_env/pyproject.toml
	$(PY) scripts/install.py . envs/echo_env
	touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml envs/echo_env/pyproject.toml
	$(PY) scripts/install.py '.[dev,dev-clouds]' envs/echo_env
	touch $@ $(VENV)/.demo

lint: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(VENV)/.dev
	$(PY) -m mypy openenv_sandbox providers/openenv_providers adapters/openenv_adapters adapters/openenv adapters/openenv_core tests

# Of the emulated backends one by REST and one by gRPC, for the sake of ten minutes; the others' parts are of test-all
# (`scripts/test_all.py NAME`), and .ci/run runs them when a provider changed.
LEFT_OUT := $(foreach name,aca e2b islo kubernetes novita runloop,$(wildcard tests/emulators/test_$(name)*.py))
quick: $(VENV)/.dev
	$(PYTEST) -m '$(QUICK)' -n $(WORKERS) --dist loadfile --ignore=tests/emulators
	$(PYTEST) tests/emulators -m '$(QUICK)' -n $(WORKERS) --dist loadfile $(addprefix --ignore=,$(LEFT_OUT))

left-out:
	@echo $(LEFT_OUT)

full: $(VENV)/.dev
	$(PYTEST) -m 'full and not interop'

# Wire and server on the lowest and highest Python: websockets, FastAPI and Starlette resolve to other versions there.
wire-pythons: $(VENV)/.dev
	for v in $(EXTRA_PYTHONS); do \
	  sh scripts/venv.sh .venv-$$v $$v && .venv-$$v/bin/python scripts/install.py '.[dev]' envs/echo_env && \
	  .venv-$$v/bin/python -m pytest tests/wire tests/server tests/client -m '$(QUICK)' -q || exit 1; \
	done

interop-env: $(VENV)/.dev
	$(PY) scripts/interop_env.py

interop: $(VENV)/.dev
	$(PY) scripts/interop_env.py
	$(PYTEST) tests/interop -m interop

# Pages that environments build with Gradio, which is in no other environment.
gradio:
	sh scripts/venv.sh .venv-gradio
	.venv-gradio/bin/python -m pip install --quiet --disable-pip-version-check -e . gradio pytest hypothesis
	.venv-gradio/bin/python -m pytest tests/web/test_web_gradio.py -q

wheel-test: $(VENV)/.dev
	$(PYTEST) tests/packaging -m full

bench: $(VENV)/.dev
	$(PY) benchmarks/run.py

docs: $(VENV)/.dev
	$(PY) -m mkdocs build --strict

# Pages of docs/ that are made from the code; the tests fail where one is stale.
pages: $(VENV)/.dev
	for name in backend cli api interface; do $(PY) scripts/$${name}_docs.py || exit 1; done
	$(PY) scripts/scenarios.py

base-image: $(VENV)/.dev
	$(PY) scripts/base_image.py

clean:
	rm -rf .venv .venv-* site dist build .mypy_cache .ruff_cache .pytest_cache
