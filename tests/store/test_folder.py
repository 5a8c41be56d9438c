import pytest

from spsbench.errors import CannotCreateError, Exit
from spsbench.store.run_folder import belongs, check_writable, make_run_folder


def test_the_check_leaves_nothing(tmp_path):
    check_writable(tmp_path)
    check_writable(tmp_path / "not" / "there")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "run", "run/deep"])
def test_a_file_in_the_way(tmp_path, below):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CannotCreateError) as raised:
        check_writable(tmp_path / "file" / below)
    assert raised.value.code == Exit.CANNOT_CREATE == 73
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["nul\0", "x" * 300, "link", "link/run"])
def test_a_name_that_cannot_be(tmp_path, name):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CannotCreateError):
        check_writable(tmp_path / name)


def test_a_link_to_a_folder_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    make_run_folder(tmp_path / "link")
    make_run_folder(tmp_path / "link" / "run")
    assert (tmp_path / "real" / "run").is_dir()


def test_a_folder_of_another_kind_is_refused(tmp_path):
    make_run_folder(tmp_path)  # empty
    (tmp_path / ".hidden").write_text("")  # what a killed start may leave
    make_run_folder(tmp_path)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CannotCreateError):
        make_run_folder(tmp_path)
    (tmp_path / "manifest.json").write_text("")
    make_run_folder(tmp_path)


@pytest.mark.parametrize("expected", [[800], [122, 115, 123, 106, 114, 112, 108]], ids=len)
def test_each_generation_has_one_shard_whatever_its_method(expected):
    sizes, total = [0] * len(expected), len(expected)
    for number in range(400):
        for repeat in range(2):
            key = ("cell", f"HumanEval/{number}", repeat)
            shards = [n for n in range(total) if belongs(key, (n, total))]
            assert len(shards) == 1
            assert belongs(("other", *key[1:]), (shards[0], total))
            sizes[shards[0]] += 1
    assert sizes == expected  # in every process
