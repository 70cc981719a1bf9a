"""What a program imports, read from its text, so that the zygote can import it once for all ranks.

Only modules of known packages are imported: those whose import is heavy and does nothing but define things. A module that is
not imported here is imported by each rank, as always.
"""

import ast
import importlib
import os

_HEAVY = {"torch", "numpy", "transformers", "accelerate", "lightning", "pytorch_lightning", "datasets", "safetensors", "einops", "tokenizers", "torchvision", "triton"}
_MOST_FILES = 300


def _imports_of(path):
    """(module, name or None) of every absolute import in the file, and the relative ones as (level, module)."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                yield node.module, alias.name


def _local_files(module, folder):
    base = os.path.join(folder, *module.split("."))
    for candidate in (base + ".py", os.path.join(base, "__init__.py")):
        if os.path.isfile(candidate):
            yield candidate


def wanted(source_path):
    """The imports of the program and of the files beside it and on PYTHONPATH that it imports, in order, known packages only."""
    if source_path is None:
        return []
    folders = [os.path.dirname(os.path.abspath(source_path)), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    pending, seen, found = [source_path], {os.path.abspath(source_path)}, {}
    while pending and len(seen) < _MOST_FILES:
        for module, name in _imports_of(pending.pop()):
            if module.split(".")[0] in _HEAVY:
                found.setdefault((module, name))
                continue
            for path in (path for folder in folders for path in _local_files(module, folder)):
                if os.path.abspath(path) not in seen:
                    seen.add(os.path.abspath(path))
                    pending.append(path)
    return list(found)


def preload(source_path, always):
    """Imports `always` and what the program wants; returns the names of what was imported. Failures are the program's to meet."""
    imported = []
    for module, name in [(module, None) for module in always] + wanted(source_path):
        try:
            loaded = importlib.import_module(module)
            if name is not None and name != "*":
                # Packages such as transformers import a class's module when the name is first asked for.
                if getattr(loaded, name, None) is None:
                    importlib.import_module(f"{module}.{name}")
            if module not in imported:
                imported.append(module)
        except Exception:
            continue
    return imported
