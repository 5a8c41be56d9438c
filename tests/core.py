"""Run the core's tests without extensions, in a copy of the tree: `python -m tests.core`.

The copy has neither `spsbench/extensions` nor `tests/extensions`; it stands first on PYTHONPATH, so
that processes of the tests import it too. `--share`, `--seed` and `--minutes` are those of
`tests.share`; other arguments are pytest's. `NEED_FAST` lists what is left out.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.share_arguments import arguments

ROOT = Path(__file__).parents[1]
IGNORED = shutil.ignore_patterns(".*", "__pycache__", "extensions", "work", "site", "build", "dist")
NEED_FAST = {
    # They name the engine `fast`, whose absence is refused or costs a line, or look at files that
    # the copy lacks.
    "tests/benchmark/test_drafters.py": (
        "test_each_drafter_takes_what_it_has_a_use_for",
        "test_what_cannot_be_is_left_out_and_said",
    ),
    "tests/cli/test_failures.py": (
        "test_a_bug_leaves_its_traceback_in_a_file",
        "test_a_panic_in_a_library_is_a_line",
        "test_an_interrupt",
        "test_known_failures",
        "test_the_traceback_is_shown_to_who_asks",
        "test_variables_that_cannot_work",
    ),
    "tests/cli/test_generate.py": ("test_notes_are_lines_on_stderr",),
    "tests/cli/test_listing.py": (
        "test_every_plug_in_is_a_line",
        "test_no_line_is_wider_than_the_terminal",
    ),
    "tests/cli/test_own_drafter.py": ("test_greedy_texts_are_those_of_the_target",),
    "tests/cli/test_plugins.py": (
        "test_every_kind_is_listed",
        "test_the_rule_that_divides_by_p_is_exact_and_keeps_the_paper_s_tokens",
    ),
    "tests/cli/test_prompt.py": (
        "test_a_file_that_may_not_be_read",
        "test_what_is_no_prompt",
    ),
    "tests/cli/test_start.py": (
        "test_each_command_is_imported_when_it_is_named_and_summarised_by_its_first_line",
        "test_files_named_like_packages",
    ),
    "tests/cli/test_usage.py": (
        "test_one_line_and_two",
        "test_ranks_that_cannot_be_are_refused_before_any_is_started",
    ),
    "tests/cli/test_verify.py": ("test_what_cannot_be_meant",),
    "tests/engines/test_recurrent.py": ("test_a_plan_says_the_bytes_of_states",),
    "tests/engines/test_sessions.py": (
        "test_any_script_with_windows_equals_passes_without_a_cache",
    ),
    "tests/methods/test_build.py": (
        "test_a_drafter_that_cannot_be_made_is_a_line",
        "test_models_are_loaded_for_each_other",
        "test_parts_are_put_together_over_the_models",
        "test_the_verifier_that_goes_with_the_drafter",
        "test_the_warp_is_that_of_the_cell",
        "test_what_cannot_be_built_is_refused",
    ),
    "tests/models/test_default_drafters.py": ("test_the_default_of_each_target_is_named",),
    "tests/pair/test_batch.py": (
        "test_a_row_that_fails_is_named_and_the_others_go_on",
        "test_a_stop_string_ends_its_row_alone",
        "test_prompts_are_texts_ids_or_conversations",
        "test_texts_of_a_batch_are_those_of_each_prompt",
        "test_what_is_wrong_with_a_prompt_or_a_batch_is_told_before_anything_runs",
    ),
    "tests/planning/test_plan.py": (
        "test_a_trace_of_a_chat_is_pasted_with_its_template",
        "test_files_alone",
    ),
    "tests/settings/test_options.py": (
        "test_a_bundled_target_brings_its_draft",
        "test_a_file_and_the_library_have_them_as_well",
        "test_a_named_drafter_leaves_the_bundled_draft_out",
        "test_a_tree_is_as_deep_as_its_arguments_say_where_nobody_says_k",
        "test_revisions_go_with_their_models",
    ),
    "tests/test_bundled_heads.py": (
        "test_a_neighbour_in_a_common_pass_changes_a_text",
        "test_its_texts_are_the_same_in_any_batch",
        "test_texts_of_a_batch_share_its_passes",
    ),
    "tests/test_docs_paths.py": ("test_ci_runs_the_commands_that_contributing_names",),
    "tests/test_registry.py": ("test_names_are_unique_and_lead_to_plug_ins",),
    "tests/test_subclassing.py": ("test_a_part_can_be_extended",),
    "tests/test_trained.py": ("test_greedy_text_is_that_of_transformers",),
    "tests/test_trees_exactness.py": ("test_a_planted_bug_is_seen_by_what_is_walked_unasked",),
    "tests/workers/test_traces.py": ("test_the_driver_traces_what_workers_made",),
}
PARALLEL = ("--numprocesses", "auto", "--maxprocesses", "8", "--dist", "worksteal")


def main() -> int:
    words = arguments('make test-core CORE="{}"', str(__doc__))
    with tempfile.TemporaryDirectory(prefix="spsbench-core-") as folder:
        copy = Path(folder, "tree")
        shutil.copytree(ROOT, copy, ignore=IGNORED)
        path = os.pathsep.join(filter(None, [str(copy), os.environ.get("PYTHONPATH")]))
        left_out = [
            f"--deselect={file}::{name}" for file, names in NEED_FAST.items() for name in names
        ]
        command = [sys.executable, "-m", "pytest", *PARALLEL, *left_out, *words]
        return subprocess.run(command, cwd=copy, env=os.environ | {"PYTHONPATH": path}).returncode


if __name__ == "__main__":
    sys.exit(main())
