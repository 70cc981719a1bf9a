"""The `hostcuda` command: exit codes, options, messages; installation into an environment and out of it."""

import json
import os
import pathlib
import subprocess

import pytest


def hostcuda(command, *arguments, **options):
    return subprocess.run([command, *map(str, arguments)], capture_output=True, text=True, timeout=300, **options)


def test_run_returns_the_programs_exit_code(command):
    assert hostcuda(command, "run", "--", "sh", "-c", "exit 7").returncode == 7


def test_run_ends_with_125_if_it_cannot_start_the_program(command):
    result = hostcuda(command, "run", "--", "/no/such/program")
    assert result.returncode == 125
    assert "/no/such/program" in result.stderr and "hint:" in result.stderr


def test_run_without_a_program_says_how(command):
    result = hostcuda(command, "run")
    assert result.returncode == 125 and "hostcuda run [options] -- python train.py" in result.stderr


@pytest.mark.parametrize("arguments, says", [
    (("run", "--memory", "3Q", "--", "true"), "'3Q' is no size"),
    (("run", "--devices", "0", "--", "true"), "'0' is no number of devices"),
    (("run", "--values", "gpu", "--", "true"), "none"),
    (("instal",), "did you mean install?"),
    (("run", "--values", "all", "--", "true"), "hint: hostcuda run --help"),
    (("run", "--devises", "3", "--", "true"), "did you mean --devices?"),
    (("install", "--env", "/nowhere"), "/nowhere is no Python environment"),
])
def test_bad_input_is_named_with_a_remedy(command, arguments, says):
    result = hostcuda(command, *arguments)
    assert result.returncode != 0 and says in result.stderr and "hint:" in result.stderr, result.stderr


def test_options_reach_the_program(run):
    code = "import json, torch; print(json.dumps([torch.cuda.device_count(), torch.cuda.get_device_name(0), torch.cuda.mem_get_info()[1]]))"
    result = run("-c", code, options=("--devices", "3", "--memory", "20GiB", "--gpu", "a100"))
    assert result.code == 0, result.stderr
    count, name, total = json.loads(result.stdout)
    assert count == 3 and "A100" in name and total == 20 << 30


def test_run_keeps_compiled_kernels_apart(command, tmp_path):
    result = hostcuda(command, "run", "--cache", tmp_path, "--dry-run", "--", "true")
    for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "PYTORCH_KERNEL_CACHE_PATH", "CUDA_CACHE_PATH"):
        assert f"{variable}={tmp_path}" in result.stdout


@pytest.fixture
def environment(tmp_path):
    """Something shaped like an environment, with one library of NVIDIA's in it."""
    site = tmp_path / "env/lib/python3.11/site-packages"
    library = site / "nvidia/cudnn/lib/libcudnn.so.9"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"NVIDIA's own")
    return tmp_path / "env", site, library


def test_install_does_not_replace_nvidias_libraries_unasked(command, build, environment):
    env, _, library = environment
    result = hostcuda(command, "install", "--env", env)
    assert result.returncode == 1 and "libcudnn.so.9" in result.stderr and "--force" in result.stderr
    assert library.read_bytes() == b"NVIDIA's own"


def test_forced_install_is_undone_by_uninstall(command, environment):
    env, site, library = environment
    assert hostcuda(command, "install", "--env", env, "--force").returncode == 0
    assert b"hostcuda" in library.read_bytes()
    assert hostcuda(command, "install", "--env", env).returncode == 0  # again: ours are replaced without asking
    assert hostcuda(command, "uninstall", "--env", env).returncode == 0
    assert library.read_bytes() == b"NVIDIA's own"
    assert [p.name for p in site.rglob("*") if p.is_file()] == ["libcudnn.so.9"]


def test_install_removes_what_an_earlier_one_left(command, build, environment, tmp_path):
    env, site, library = environment
    library.unlink()
    more = tmp_path / "libraries"
    more.mkdir()
    for name in ("libcuda.so.1", "libcublas.so.13"):
        (more / name).symlink_to(build / "hostcuda/lib" / name)
    assert hostcuda(command, "install", "--env", env, "--libraries", more).returncode == 0
    (more / "libcublas.so.13").unlink()
    assert hostcuda(command, "install", "--env", env, "--libraries", more).returncode == 0
    assert [p.name for p in site.rglob("*.so.1*") if not p.is_symlink()] == ["libcuda.so.1"]


def test_install_does_not_write_through_hard_links(command, tmp_path):
    folder = tmp_path / "env/lib/python3.11/site-packages/nvidia/cu13/lib"
    folder.mkdir(parents=True)
    original = tmp_path / "elsewhere"
    original.write_bytes(b"hostcuda of another day")
    os.link(original, folder / "libcublas.so.13")
    assert hostcuda(command, "install", "--env", tmp_path / "env").returncode == 0
    assert original.read_bytes() == b"hostcuda of another day"


def test_doctor_passes_here_and_reports_as_json(command, installed):
    result = hostcuda(command, "doctor", "--env", installed, "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 0 and report["ok"], report
    assert {c["check"] for c in report["checks"]} >= {"libraries", "driver", "shared memory", "installation"}


def test_doctor_names_what_is_missing(command, tmp_path):
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    result = hostcuda(command, "doctor", "--libraries", tmp_path)
    assert result.returncode == 1 and "libcudart.so.13" in result.stdout


def test_reference_page_is_current(command):
    page = pathlib.Path(__file__).resolve().parents[2] / "docs/reference/hostcuda-command.md"
    assert hostcuda(command, "reference").stdout == page.read_text()
