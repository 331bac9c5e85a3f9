"""Outputs: written whole or not at all, and in place of nothing that is no regular file."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer import files
from glassformer.cli import main
from glassformer.errors import SaveError
from waiting import in_seconds

LONG = "n" * 300


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_link_is_followed_and_stays_a_link():
    Path("folder").mkdir()
    Path("folder/target").write_text("old")
    Path("link").symlink_to("folder/target")
    assert files.write("link", "new") == Path("link")
    assert Path("link").is_symlink() and Path("folder/target").read_text() == "new"
    assert [p.name for p in Path("folder").iterdir()] == ["target"]


def test_a_link_to_nothing_yet_makes_its_target():
    Path("link").symlink_to("missing/target")
    files.check_writable("link")
    files.write("link", "new")
    assert Path("link").is_symlink() and Path("missing/target").read_text() == "new"


@pytest.mark.parametrize("write", [files.check_writable, lambda path: files.write(path, "")])
def test_a_link_to_where_nothing_can_be_is_refused(write):
    Path("file").write_text("in the way")
    Path("link").symlink_to("file/target")
    with pytest.raises(SaveError, match='cannot write "link'):
        write("link")
    assert Path("link").is_symlink() and Path("file").read_text() == "in the way"


@pytest.mark.parametrize("write", [files.check_writable, lambda path: files.write(path, "")])
def test_links_in_a_circle_are_refused(write):
    Path("one").symlink_to("other")
    Path("other").symlink_to("one")
    with pytest.raises(SaveError, match='cannot write "one"'):
        write("one")
    assert Path("one").is_symlink() and Path("other").is_symlink()


def test_a_pipe_is_written_through_and_stays_a_pipe():
    os.mkfifo("pipe")
    with in_seconds():
        # nobody reads yet
        files.check_writable("pipe")
        reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
        files.write("pipe", "through")
    assert os.read(reader, 100) == b"through" and stat.S_ISFIFO(os.stat("pipe").st_mode)
    os.close(reader)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files have no names here")
def test_a_pipe_in_a_place_that_takes_no_files_can_be_written():
    # what /dev/stdout leads to in front of another program
    reader, writer = os.pipe()
    path = f"/proc/self/fd/{writer}"
    files.check_writable(path)
    files.write(path, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    os.close(writer)


def test_a_pipe_that_may_not_be_written_is_refused_before_anything_is_run(monkeypatch):
    # whoever runs the tests may write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    os.mkfifo("pipe")
    with in_seconds(), pytest.raises(SaveError, match='cannot write "pipe": Permission denied'):
        files.check_writable("pipe")


def test_a_device_is_written_through_and_stays_a_device():
    # a link of ours, since whoever may replace the device itself must not do so in a test
    Path("null").symlink_to(os.devnull)
    files.check_writable("null")
    files.write("null", "gone")
    assert Path("null").is_symlink() and stat.S_ISCHR(os.stat("null").st_mode)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_device_that_takes_nothing_is_an_error_and_stays_a_device():
    with pytest.raises(SaveError, match="No space left"):
        files.write("/dev/full", "anything")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="standard output has no name here")
def test_a_document_sent_to_standard_output_follows_what_was_printed_before():
    code = "from glassformer import files; print('before'); files.write('/dev/stdout', 'document'); print('after')"
    with Path("out").open("wb") as out:
        # held back until it is flushed, whatever the tests themselves run under
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": ""}
        assert subprocess.run([sys.executable, "-c", code], stdout=out, env=environment).returncode == 0
    assert Path("out").read_text() == "before\ndocumentafter\n"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_that_the_umask_leaves(mask):
    before = os.umask(mask)
    try:
        files.write("new", "")
    finally:
        os.umask(before)
    assert mode("new") == 0o666 & ~mask


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o664])
def test_a_file_that_was_there_keeps_its_mode(bits):
    Path("old").write_text("")
    os.chmod("old", bits)
    files.write("old", "new")
    assert mode("old") == bits and Path("old").read_text() == "new"


def test_a_name_as_long_as_the_system_takes_is_written():
    name = "n" * 255
    files.check_writable(name)
    files.write(name, "whole")
    assert Path(name).read_text() == "whole"


@pytest.mark.parametrize("path", [LONG, f"missing/{LONG}", f"{LONG}/file", "nul\0", "folder"])
@pytest.mark.parametrize("write", [files.check_writable, lambda path: files.write(path, "")])
def test_a_name_that_cannot_be_written_is_refused_and_leaves_nothing(path, write):
    Path("folder").mkdir()
    with pytest.raises(SaveError, match="cannot write"):
        write(path)
    assert os.listdir() == ["folder"] and not os.listdir("folder")


@pytest.mark.parametrize(
    ("write", "said"),
    [(files.check_writable, "it is a folder. Add the name"), (lambda path: files.write(path, ""), "in the way")],
)
def test_a_folder_in_the_way_is_called_one(write, said):
    Path("folder").mkdir()
    with pytest.raises(SaveError, match=f'cannot write "folder": .*{said}'):
        write("folder")


def test_what_a_link_under_the_temporary_name_leads_to_is_not_written_over(monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda size: "known")
    Path("other").write_text("mine")
    Path(".glassformer-known").symlink_to("other")
    with pytest.raises(SaveError, match="File exists"):
        files.write("new", "content")
    assert Path("other").read_text() == "mine"


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_an_output_name_that_is_too_long_is_refused_before_anything_is_run(option, capsys):
    assert main(["explain", "nope", "a", option, LONG]) == 2
    assert "cannot write" in capsys.readouterr().err
