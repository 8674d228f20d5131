"""The pytest plugin and its assertions, used from a directory of tests."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import plait
import pytest
from plait.testing import Snapshot, assert_greedy, assert_logits_close

pytest_plugins = ["pytester"]

STORY = "Tom lives in Oslo. The kite is red. Q: Where does Tom live? A:"
PLUGIN = ("-p", "plait.testing.plugin", "-p", "no:cacheprovider")


def run(pytester: pytest.Pytester, source: str, *args: str) -> pytest.RunResult:
    pytester.makepyfile(test_theirs=source)
    return pytester.runpytest_subprocess(*PLUGIN, *args)


def test_equal_logits_pass(tiny):
    ctx = plait.Context(tiny, n_ctx=16)
    batch = plait.Batch()
    batch.add_sequence([1, 2, 3], logits="all")
    out = ctx.encode(batch)
    assert_logits_close(out, out.logits)
    assert_logits_close(out.logits[0], out[0] + 5e-4)
    same = np.array([np.inf, np.nan, -np.inf, 1])
    assert_logits_close(same, same.copy())


@pytest.mark.parametrize(
    ("actual", "expected"),
    [([1, 2.1], [1, 2]), ([1, np.nan], [1, 2]), ([1, np.inf], [1, -np.inf]), ([-np.inf, 1], [0, 1])],
)  # fmt: skip
def test_different_logits_fail(actual, expected):
    with pytest.raises(AssertionError, match="1 of 2 logits in 1 of 1 rows"):
        assert_logits_close(actual, expected)


def test_the_report_names_the_worst_row_and_the_likeliest_tokens(tiny):
    theirs = np.random.default_rng(0).standard_normal((4, tiny.n_vocab)).astype(np.float32)
    ours = theirs.copy()
    ours[1, 5] += 0.1
    ours[2, 3 + ord("Q")] = 9  # the byte Q
    with pytest.raises(AssertionError) as failed:
        assert_logits_close(ours, theirs, model=tiny, top=2)
    lines = str(failed.value).splitlines()
    assert lines[0].startswith("2 of 1152 logits in 2 of 4 rows")
    assert lines[1].startswith("row 2: token 84 'Q' has 9, expected ")
    p = np.exp(theirs[2].astype(float))
    p /= p.sum()
    q = np.exp(ours[2].astype(float))
    q /= q.sum()
    assert f"KL(expected || actual) = {(p * np.log(p / q)).sum():.3g} nats" in lines[1]
    assert lines[3].split()[:2] == ["1", "84"]
    assert lines[3].endswith("<")
    assert any(line.startswith("row 1: token 5 ") for line in lines)


def test_the_report_without_tokens():
    with pytest.raises(AssertionError, match=r"KL\(expected \|\| actual\) = \S+ nats$"):
        assert_logits_close([1, 2], [1, 3], top=0)


def test_logits_of_other_shapes_are_the_tests_mistake():
    with pytest.raises(ValueError, match=r"\(1, 2\), but expected has \(1, 3\)"):
        assert_logits_close([1, 2], [1, 2, 3])


def test_greedy(demo_model):
    assert_greedy(demo_model, STORY, " Tom lives in Oslo.")
    with plait.Context(demo_model, n_ctx=64, n_seq_max=2) as ctx:
        assert_greedy(ctx, STORY, " Tom lives")
        assert ctx.kv.n_used == 0


def test_failures_name_the_first_token_that_differs(demo_model):
    with pytest.raises(AssertionError) as failed:
        assert_greedy(demo_model, STORY, " Tom lives in Rome.", top=3)
    lines = str(failed.value).splitlines()
    assert lines[0] == f"after {STORY + ' Tom lives in'!r}"
    assert lines[1].startswith("expected ' Rome' (p = 0.")
    assert "Oslo" in lines[2]
    assert len(lines) == 5
    with pytest.raises(AssertionError, match=r"token \d of \d$"):
        assert_greedy(demo_model, STORY, " Tom lives in Rome.", top=0)


@pytest.mark.parametrize("nothing", [[], np.zeros((0, 5)), np.zeros((5, 0))])
def test_no_logits_are_not_close(nothing):
    with pytest.raises(ValueError, match="actual holds no logits: its shape is"):
        assert_logits_close(nothing, nothing)


def test_snapshots_are_compared_and_updated(tmp_path, demo_model):
    path = tmp_path / "snapshots" / "a.json"
    with pytest.raises(AssertionError, match="--plait-update"):
        Snapshot(path).check("answer", 1)
    said = Snapshot(path, update=True).generate(demo_model, STORY, 8)
    assert said[STORY].startswith(" ")  # as the text continues
    assert "Oslo" in said[STORY]
    Snapshot(path, update=True).check("numbers", (1, 2))
    Snapshot(path).check("numbers", [1, 2])
    assert Snapshot(path).generate(demo_model, [STORY], 8) == said
    assert set(json.loads(path.read_text())) == {"generate", "numbers"}
    with pytest.raises(AssertionError, match=r"(?s)\n-  2\n\+  3"):
        Snapshot(path).check("numbers", [1, 3])


def test_fixtures_and_markers(pytester):
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.plait(n_ctx=32, n_seq_max=3)
        @pytest.mark.plait_memory("streams", "unified/q8_0", "unified/f32/q4_0")
        def test_memory(plait_context, request):
            ctx = plait_context
            name = request.node.callspec.id
            assert (ctx.n_ctx, ctx.n_seq_max) == (32, 3)
            found = (ctx.kv.kind, ctx.type_k, ctx.type_v)
            assert found == {
                "streams": ("streams", "f16", "f16"),
                "unified/q8_0": ("unified", "q8_0", "q8_0"),
                "unified/f32/q4_0": ("unified", "f32", "q4_0"),
            }[name]

        class TestClass:
            pytestmark = [pytest.mark.plait(n_ctx=64, n_batch=16)]

            @pytest.mark.plait(n_ctx=48)
            @pytest.mark.plait_memory
            def test_nearer_options_win(self, plait_model, plait_context):
                assert plait_context.model is plait_model
                assert (plait_context.n_ctx, plait_context.n_batch) == (48, 16)
                assert plait_context.graph_reuse

        def test_embedded(plait_model, plait_context):
            assert plait_context.kv.kind == "unified"
            assert plait_model.metadata["general.architecture"] == "llama"
        """,
        "--strict-markers", "-v",
    )  # fmt: skip
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["*nearer_options_win*streams* PASSED*"])


def test_options(pytester, tiny_path):  # S0-10
    source = """
        import pytest

        used = []

        @pytest.mark.parametrize("text", ["the", "reuse", "a"])
        def test_one(plait_model, plait_context, plait_snapshot, text):
            assert plait_model.n_vocab == 288
            used.append(plait_context.graph_reuse)
            plait_snapshot.generate(plait_context, text, 3)

        def test_both(plait_context, plait_snapshot):
            plait_snapshot.generate(plait_context, "the", 3)
            assert set(used) == {True, False}
        """
    args = ("--plait-model", str(tiny_path), "--plait-reuse", "both")
    run(pytester, source, *args).assert_outcomes(failed=8)
    run(pytester, source, *args, "--plait-update").assert_outcomes(passed=8)
    held = {path.stem for path in pytester.path.glob("snapshots/test_theirs/*.json")}
    assert held == {"test_one-the", "test_one-reuse", "test_one-a", "test_both"}  # one for both
    run(pytester, source, *args).assert_outcomes(passed=8)
    refused = run(pytester, source, "--plait-reuse", "perhaps")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR


SNAPSHOTS = """
    import pytest

    def test_x(plait_snapshot, request):
        plait_snapshot.check("id", request.node.nodeid)

    class TestA:
        def test_x(self, plait_snapshot, request):
            plait_snapshot.check("id", request.node.nodeid)

        class TestB:
            def test_x(self, plait_snapshot, request):
                plait_snapshot.check("id", request.node.nodeid)

    @pytest.mark.parametrize("value", ["a", "a b", "a/b", "a-b", "-a", "a-", "", "[a]", "a.b", ":a", "TestA"])
    def test_y(plait_snapshot, request, value):
        plait_snapshot.check("id", request.node.nodeid)

    class TestC:
        def test_y(self, plait_snapshot, request):
            plait_snapshot.check("id", request.node.nodeid)
    """


def test_each_test_has_a_snapshot_of_its_own(pytester):
    run(pytester, SNAPSHOTS, "--plait-update").assert_outcomes(passed=15)
    run(pytester, SNAPSHOTS).assert_outcomes(passed=15)
    names = {path.stem for path in pytester.path.glob("snapshots/test_theirs/*.json")}
    assert len(names) == 15
    assert names > {
        "test_x",
        "TestA--test_x",
        "TestA--TestB--test_x",
        "test_y-a",
        "test_y-a-b",
        "test_y-a.b",
    }
    assert "test_y" not in names


def test_long_parameters_have_snapshots(pytester):
    source = """
        import pytest

        TEXTS = "a" * 199, "a" * 300 + "b", "a" * 300 + "c", "Tom lives in Oslo. " * 30

        @pytest.mark.parametrize("text", TEXTS, ids=TEXTS)
        def test_x(plait_snapshot, request, text):
            plait_snapshot.check("id", request.node.nodeid)
        """
    run(pytester, source, "--plait-update").assert_outcomes(passed=4)
    names = {path.stem for path in pytester.path.glob("snapshots/test_theirs/*.json")}
    assert len(names) == 4
    assert "test_x-" + "a" * 199 in names
    assert max(map(len, names)) == 210


def test_files_of_earlier_names_stay_as_they_are(pytester):
    """They had no class, so another test can have written them."""
    shared = pytester.mkdir("snapshots") / "test_theirs" / "test_x.json"
    shared.parent.mkdir()
    shared.write_text('{"id": "test_theirs.py::TestA::test_x"}')
    source = """
        class TestA:
            def test_x(self, plait_snapshot, request):
                plait_snapshot.check("id", request.node.nodeid)

        class TestB:
            def test_x(self, plait_snapshot, request):
                plait_snapshot.check("id", request.node.nodeid)
        """
    pytester.makepyfile(test_theirs=source)
    alone = (*PLUGIN, "test_theirs.py::TestB::test_x")
    result = pytester.runpytest_subprocess(*alone)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no snapshot 'id' in *TestB--test_x.json*"])
    pytester.runpytest_subprocess(*alone, "--plait-update").assert_outcomes(passed=1)
    pytester.runpytest_subprocess(*alone).assert_outcomes(passed=1)
    assert shared.read_text() == '{"id": "test_theirs.py::TestA::test_x"}'


def test_true_is_not_1(tmp_path):
    """As in JSON, which has one kind of number."""
    path = tmp_path / "a.json"
    Snapshot(path, update=True).check("answer", {"ok": [True], "n": 1, "zero": 0.0})
    Snapshot(path).check("answer", {"zero": -0.0, "n": np.float64(1), "ok": [True]})
    for other in ({"ok": [1]}, {"n": True}, {"zero": False}, {"ok": [True, True]}, {"ok": 1}):
        with pytest.raises(AssertionError, match=r"snapshot 'answer' .* differs"):
            Snapshot(path).check("answer", {"ok": [True], "n": 1, "zero": 0.0} | other)
    with pytest.raises(AssertionError, match=r"snapshot 'answer' .* differs"):
        Snapshot(path).check("answer", {"ok": [True], "n": 1})


def test_a_value_that_cannot_be_written_changes_nothing(tmp_path):
    path = tmp_path / "a.json"
    Snapshot(path, update=True).check("answer", 1)
    with pytest.raises(ValueError, match="surrogates not allowed"):
        Snapshot(path, update=True).check("broken", "\ud800")
    Snapshot(path).check("answer", 1)


@pytest.mark.parametrize("value", [np.nan, {"a": [np.inf]}])
@pytest.mark.parametrize("update", [True, False])
def test_values_that_are_not_json_are_refused(tmp_path, value, update):
    with pytest.raises(ValueError, match="without NaN and infinity"):
        Snapshot(tmp_path / "a.json", update).check("answer", value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["<<<<<<< HEAD\n", "[1]", "", "null"])
@pytest.mark.parametrize("update", [True, False])
def test_a_damaged_snapshot_is_named(tmp_path, text, update):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"a\.json is not a snapshot file"):
        Snapshot(path, update).check("answer", 1)
    assert path.read_text() == text


def test_threads_may_update_one_file(tmp_path):
    path = tmp_path / "a.json"

    def update(name):
        for i in range(200):
            Snapshot(path, update=True).check(name, i)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(update, "abcd"))
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_failure_can_be_read(pytester):
    result = run(
        pytester,
        """
        from plait.testing import assert_greedy

        def test_answer(plait_model):
            assert_greedy(plait_model, "Tom lives in Oslo. Q: Where does Tom live? A:", " Tom lives in Rome.")
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *expected ' Rome' (p = 0.*", "E  *Oslo*"])
    result.stdout.no_fnmatch_line("*greedy.py*")  # no frames of the plugin
