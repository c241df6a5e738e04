# Thin calls: everything lives in scripts/, which people and CI both use.
.PHONY: install demo test check bench clean

install: ## create .venv and compile llama.cpp for this machine (about five minutes the first time)
	@scripts/install

demo: install ## a 2,000-token prompt: cold, again, after a worker crash, after a restart
	@scripts/demo

test: install ## lint, types, layers and every test
	@scripts/test

check: install ## ruff, mypy --strict, import-linter
	@scripts/check

bench: install ## measure everything again into benchmarks/results/
	@scripts/bench

clean: ## forget the environment and every tool's cache; models and results stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
