# SPDX-License-Identifier: Apache-2.0
"""doctor: complete, healthy here, and safe to paste into an issue."""

from pathlib import Path

import pytest

from gossamer.cli.doctor import health
from gossamer.cli.doctor.health import scrub_text
from gossamer.ops import kernels
from gossamer.ops.kernels import available_kernels

SECRETS = {
    "HF_TOKEN": "hf_thisIsNotForTheWorld",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
    "DB_PASSWORD": "correct horse battery",
}


def test_healthy_machine_exits_0_and_shows_everything(gossamer_cli):
    ran = gossamer_cli("doctor", "--json")
    assert ran.code == 0
    checks = ran.document["checks"]
    expected = {"gossamer", "python", "torch", "numpy", "cpu", "kernel sets", "active kernels"}
    expected |= {"cpu extensions"}
    expected |= {"threads", "OpenMP pools", "GOSSAMER_TUNE", "GOSSAMER_CACHE", "memory", "cache"}
    expected |= {f"self-test {name}" for name in available_kernels()} | {"disk (here)", "BLAS"}
    assert expected <= set(checks)
    assert ran.document["healthy"] is True
    assert ran.document["problems"] == []


def test_nothing_private_is_printed(fresh_cli, tmp_path):
    home = tmp_path / "home" / "alice.private"
    home.mkdir(parents=True)
    cache = home / "hf_thisIsNotForTheWorld" / "cache"
    variables = {**SECRETS, "HOME": str(home), "GOSSAMER_CACHE": str(cache), "LOGNAME": "alice99"}
    for extra in ([], ["--json"]):
        ran = fresh_cli("doctor", *extra, **variables)
        assert ran.code == 0, ran.out
        for private in (*SECRETS.values(), "alice.private", str(home), "alice99"):
            assert private not in ran.out + ran.err
        assert "~/***/cache" in ran.out


def test_scrub_replaces_the_home_directory_only_as_a_whole(monkeypatch):
    monkeypatch.setenv("HOME", "/home/bo")
    assert scrub_text("/home/bo/x and /home/bob/x") == "~/x and /home/bob/x"


def test_scrub_survives_an_empty_home(monkeypatch):
    monkeypatch.setenv("HOME", "/")
    assert scrub_text("/usr/lib") == "/usr/lib"


def test_scrub_hides_the_user_in_other_paths(monkeypatch):
    monkeypatch.setenv("LOGNAME", "carol")
    assert scrub_text("/data/carol/cache, carol sings") == "/data/<user>/cache, carol sings"


def test_short_values_of_secret_variables_stay():
    assert scrub_text("avx2 basic", {"AUTH_MODE": "basic"}) == "avx2 basic"


def test_unwritable_cache_is_a_problem_with_a_fix(gossamer_cli, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("GOSSAMER_CACHE", str(blocked / "cache"))
    ran = gossamer_cli("doctor", "--json")
    assert ran.code == 4
    assert [problem["name"] for problem in ran.document["problems"]] == ["cache"]
    assert "GOSSAMER_CACHE" in ran.document["problems"][0]["fix"]


def test_wrong_setting_is_a_problem(gossamer_cli, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "maybe")
    ran = gossamer_cli("doctor")
    assert ran.code == 4
    assert "GOSSAMER_TUNE: expected 'on' or 'off', got 'maybe'" in ran.out


def test_forced_reference_kernels_are_a_problem(gossamer_cli, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", "reference")
    ran = gossamer_cli("doctor", "--json")
    assert ran.code == 4
    assert ran.document["problems"][0]["fix"] == "Unset GOSSAMER_KERNELS."


def test_wrong_kernel_is_found(gossamer_cli, monkeypatch):
    monkeypatch.setattr(kernels, "kernel_error", lambda name: 7.0 if name == "reference" else 0.1)
    ran = gossamer_cli("doctor", "--json")
    assert ran.code == 4
    assert [problem["name"] for problem in ran.document["problems"]] == ["self-test reference"]


def test_broken_native_module_is_a_problem_not_a_crash(monkeypatch):
    def missing():
        raise ImportError("libgomp.so.1: cannot open shared object file")

    monkeypatch.setattr(health, "_kernels", missing)
    found = {check.name: check for check in health.run_checks()}
    assert not found["kernels"].ok
    assert "Reinstall" in found["kernels"].fix
    assert found["memory"].ok


def test_more_threads_than_cores_is_a_problem(monkeypatch):
    monkeypatch.setattr(health, "usable_cores", lambda: 0)
    threads = next(check for check in health._threads() if check.name == "threads")
    assert not threads.ok


@pytest.mark.parametrize(
    ("maps", "pools"),
    [
        ("", []),
        ("7f r-xp 0 0 1 /venv/torch/lib/libgomp.so.1\n" * 4, ["libgomp.so.1"]),
        (
            "7f r-xp 0 0 1 /a/libgomp.so.1\n7f r-xp 0 0 1 /b b/libiomp5.so\n",
            ["libgomp.so.1", "libiomp5.so"],
        ),
        (
            "7f r-xp 0 0 1 /a/libgomp.so.1\n7f r-xp 0 0 1 /b/libgomp.so.1\n",
            ["libgomp.so.1", "libgomp.so.1"],
        ),
        ("7f r-xp 0 0 1 /a/libcomplex.so\n7f rw-p 0 0 0 [heap]\n", []),
    ],
)
def test_openmp_pools_counts_files(maps, pools, monkeypatch):
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda self: maps if str(self) == "/proc/self/maps" else read(self)
    )
    assert health.openmp_pools() == pools


def test_exactly_one_pool_is_loaded_here(fresh_cli):
    ran = fresh_cli("doctor", "--json", "-q")
    assert ran.document["checks"]["OpenMP pools"] == {"found": "libgomp.so.1", "ok": True}
