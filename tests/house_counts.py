# SPDX-License-Identifier: Apache-2.0
"""How large the house is: `python tests/house_counts.py [REV]` counts a revision, or this tree.

A revision is read out of git into a folder of its own; nothing is checked out.

Tokens of code are what Python's `tokenize` gives for the .py files below src/, without comments,
line ends, indentation and docstrings: of modules, classes, functions and, below them, of fields.
Commit 32097d8, where the clean-up of the house began, has 417,490 of them. Features that came since
are counted apart, so that growth of the product does not hide whether the same product takes less
code.
"""

import ast
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from io import BytesIO, StringIO
from pathlib import Path

import test_doors
import test_layer_tests

ROOT = Path(__file__).parents[1]
# What was added since: paths below src/gossamer, where a folder stands for all below it; rooms of
# others that it reaches into, and the names of its definitions, fields and arguments there; if need
# be, other definitions in old files that nothing else uses, by name.
ADDED = {
    "growth": (
        (
            *("training/growth/", "recipes/stages/grow.py", "recipes/stages/train/grow.py"),
            *("planner/staged/", "planner/staged.py"),
        ),
        (
            *("nn/families/", "training/loop/", "recipes/stages/", "runs/", "cli/plan.py"),
            *("planner/", "pruning/schedules/moving/dynamic.py"),
        ),
        re.compile(r"_?grow|Growth|_?staged|_become_larger|_over_compute|_?[Rr]eopen"),
        ("check_after", "begin_after"),
    ),
    "tables": (
        (
            *("nn/layers/tables/", "nn/surgery/tables/", "ops/table/", "io/torch_bags/"),
            *("training/optim/tables/", "training/optim/side_by_side.py", "data/clicks/"),
            *("training/distributed/tables/", "data/tasks/clicks.py", "zoo/dlrm.py"),
            *("training/distributed/table_traffic.py", "io/safe_files/on_disk.py"),
            *("training/distributed/processes/pieces.py",),
            *("recipes/stages/train/clicks.py", "recipes/stages/train/tables.py"),
            *("running/clicks/", "cli/run/score.py", "search/workloads/clicks.py"),
            *("zoo/problems/clicks.py", "planner/table_step.py", "data/evaluation.py"),
            *("runs/stages/round_tables.py", "running/packed/file_tables.py"),
        ),
        ("io/", "nn/", "planner/", "recipes/", "runs/", "running/", "training/"),
        re.compile(
            r"_?[Tt]able|_?[Cc]lick|_?[Ss]core|Dlrm|Divisible|Shared|counts_ids|Rounded|_adagrad"
        ),
        (
            *("Divisible", "_check_table", "_decode_table", "_plain_tables", "_pack_table"),
            *("scoring_routes", "_features", "_features_of", "_check_tables", "quantize"),
            *("_has_quantized_tables", "rounded_tables", "folded_tables", "trained_tables"),
            *("_table_candidates", "has_trained_tables", "_rows_seconds", "has_masks"),
        ),
    ),
    "graphs": (
        (
            *("graph/", "ops/spmm/", "data/graphs/", "data/tasks/graph.py", "zoo/graph_nets.py"),
            *("zoo/problems/graphs.py", "recipes/stages/train/graph.py"),
            *("search/workloads/graphs.py", "ops/tall.py", "running/layers/graphs.py"),
            *("ops/results.py", "ops/elementwise.py"),
        ),
        ("running/", "runs/", "search/"),
        re.compile(r"_?[Gg]raph_(task|settings|work|layers)"),
        ("_graph_rules",),
    ),
    "experts": (
        (
            *("nn/moe/", "nn/layers/experts/", "ops/experts/", "running/packed/experts.py"),
            *("pruning/calibration/experts.py", "nn/surgery/known_layers.py"),
            *("training/experts.py", "recipes/stages/train/experts.py", "zoo/switch.py"),
            *("training/optim/kept_parts.py", "running/decoder/experts.py"),
            *("ops/engines/decoder_experts.py", "nn/surgery/mixtures/", "pruning/mixtures/"),
            *("training/growth/upcycling.py", "training/distributed/experts/"),
            *("recipes/stages/mixtures.py", "runs/stages/mixtures.py"),
            "planner/mixture_shape.py",
            *(f"nn/families/{n}.py" for n in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")),
        ),
        ("ops/engines/decoder.py", "nn/", "pruning/", "running/", "io/", "training/", "runs/"),
        re.compile(
            r"_?[Ee]xpert|_?moef|_?[Mm]ixture|_?(pack|check)_experts|_?num_(parts|cuts)|unstack|_solved"
            r"|_together|as_published"
        ),
        ("unstack",),
    ),
    "optimizers": (
        (),
        ("training/optim/", "recipes/stages/train/train.py"),
        re.compile(r"(corrected|normalised|clipped|max_size|_before_step)$"),
    ),
    "without native code": (
        ("ops/without_native.py",),
        ("ops/", "cli/doctor/", "running/"),
        re.compile(r"why_missing|NO_KERNELS"),
    ),
    "attention": (
        ("patterns/attention/", "ops/attention/", "nn/attention/"),
        ("ops/_native.pyi", "ops/engines/", "running/", "cli/"),
        re.compile(
            "AttentionTiles|attention_(for|back)ward|_?[Kk]ey_?[Rr]ules|key_bytes|(kv|attention)_option"
            "|can_truncate|turns|shared|_take"
        ),
    ),
    "recipes of others": (
        ("recipes/foreign/",),
        ("cli/recipe.py",),
        re.compile("(convert|_CONVERT)$"),
    ),
    "door": (
        (
            *("ops/without_native.py", "io/huggingface/sentences.py"),
            *("io/artifact/sentence_directory.py", "running/text/sentence_module.py"),
        ),
        (),
        re.compile("never"),
    ),
    "any model": (
        (
            *("io/huggingface/auto_tables.py", "io/huggingface/example_inputs.py"),
            "io/huggingface/trial_run.py",
            *(
                f"nn/families/{n}.py"
                for n in ("qwen3", "phi3", "gemma", "gemma2", "gemma3", "olmo2")
            ),
            *(f"nn/families/{n}.py" for n in ("smollm3", "granite", "gpt_neox")),
            *(f"nn/families/encoders/{n}.py" for n in ("xlm_roberta", "camembert", "electra")),
            *(f"nn/families/encoders/{n}.py" for n in ("albert", "mpnet", "modernbert", "vit")),
            *(f"nn/families/encoders/{n}.py" for n in ("nomic_bert", "dinov2", "clip", "siglip")),
            "running/decoder/features.py",
        ),
        ("io/gguf/", "nn/families/", "ops/engines/", "running/decoder/", "running/encoder/"),
        re.compile(
            r"(_?rotat(ion|ions|es)|rotary_by_type|rotation_factor|Rotation|DistanceBias|by_distance"
            r"|knows_positions|run_products|_?norm_arrays|has_usual_positions|expansion_segments"
            r"|bias_table|norms_(in|out)|head_norms|score_cap|interleaved|(residual|embedding)_scale"
            r"|logits_(scale|divisor|cap)|requires|long_rope|local_theta|wide_scale_at|norm_offset"
            r"|DecoderRules|DecoderNorm|gated|is_model|_scaled|_window|_bias|blocks_of|_Settings)$"
        ),
        (
            *("_transformers_example", "_reads_tokens", "one_layer", "in_table", "short", "unfit"),
            *("_fields", "_nested_class", "_check_size", "_is_linear_by_another_name"),
            *("has_other_linears", "WholeEncoder", "LayerList", "_Step", "_is_in_one_piece"),
            *("_run_stock", "facts_of", "_refuse_others", "_has", "roberta_like"),
            *("name_in_file", "_more_fields", "_rope", "_layer_types", "with_rope", "_llama3"),
            *("_as_in_torch", "_cut_by_words", "_special", "_post_processor"),
        ),
    ),
}
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
LAYOUT |= {tokenize.ENCODING, tokenize.ENDMARKER}
NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
CALLING = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


def tokens(source, tree):
    """Where the tokens of code begin."""
    docstrings = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        token.start
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type not in LAYOUT
        and not (token.type == tokenize.STRING and token.start[0] in docstrings)
    ]


def span(node, last=None):
    begin, last = [node.lineno, node.col_offset], last or node
    if getattr(node, "decorator_list", ()):
        begin = [node.decorator_list[0].lineno, 0]
    return tuple(begin), (last.end_lineno, last.end_col_offset)


def name_of(node):
    """Of a definition, field, argument, attribute, or of what is assigned to or imported from."""
    if isinstance(node, ast.Assign):
        node = node.targets[0]
    if isinstance(node, ast.AnnAssign | ast.AugAssign):
        node = node.target
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").rpartition(".")[2]
    fields = {ast.Name: "id", ast.Attribute: "attr", ast.keyword: "arg", ast.arg: "arg"}
    field = "name" if isinstance(node, NAMED) else fields.get(type(node), "")
    return getattr(node, field, None) or ""


def used_of(tree, modules, names):
    """Names that a file imports of a feature, from its modules or through the doors of others."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gossamer")
        for alias in node.names
        if node.module in modules or f"{node.module}.{alias.name}" in modules or alias.name in names
    }


def glue(node, used, is_named):
    """Spans of an old file that are there for a feature only.

    Definitions, fields, assignments and arguments with a name of it, imports of it, calls of what
    was imported, and branches of an `if` that asks for it.
    """

    def uses(part):
        return any(
            (isinstance(name, ast.Name) and name.id in used)
            or (isinstance(name, ast.Attribute) and is_named(name))
            for name in ast.walk(part)
        )

    if isinstance(node, ast.ImportFrom):
        if is_named(node) or all((alias.asname or alias.name) in used for alias in node.names):
            yield span(node)
        else:
            yield from (span(a) for a in node.names if (a.asname or a.name) in used)
    elif (
        is_named(node)
        or (isinstance(node, ast.Call | ast.Name) and uses(getattr(node, "func", node)))
        or (
            isinstance(node, CALLING) and isinstance(node.value, ast.Call) and uses(node.value.func)
        )
    ):
        yield span(node)
    elif isinstance(node, ast.If) and uses(node.test):
        yield span(node, node.body[-1])
        for part in node.orelse:
            yield from glue(part, used, is_named)
    else:
        for part in ast.iter_child_nodes(node):
            yield from glue(part, used, is_named)


def counted_apart(sources):
    """How many tokens there are, and of them for each feature; every token is counted once."""
    trees = {path: ast.parse(source) for path, source in sources.items()}
    found = {path: tokens(source, trees[path]) for path, source in sources.items()}
    features = dict.fromkeys(ADDED, 0)
    old = {}
    for path, number in found.items():
        homes = [name for name, (paths, *_) in ADDED.items() if str(path).startswith(paths)]
        if homes:
            features[homes[0]] += len(number)
        else:
            old[path] = number
    defined = {
        path: {node.name for node in tree.body if isinstance(node, NAMED)}
        for path, tree in trees.items()
    }
    elsewhere = set().union(*(defined[path] for path in old))
    for feature, (paths, rooms, pattern, *definitions) in ADDED.items():
        own = [path for path in sources if str(path).startswith(paths)]
        names = set().union(*(defined[path] for path in own)) - elsewhere
        modules = {module_name(path) for path in own}
        for path, starts in old.items():
            in_room = str(path).startswith(rooms)

            def is_named(node, in_room=in_room, pattern=pattern, definitions=definitions):
                name = name_of(node)
                return bool(in_room and pattern.match(name)) or (
                    isinstance(node, NAMED) and any(name in names for names in definitions)
                )

            used = used_of(trees[path], modules, names)
            spans = list(glue(trees[path], used, is_named))
            old[path] = [at for at in starts if not any(a <= at < b for a, b in spans)]
            features[feature] += len(starts) - len(old[path])
    return sum(map(len, found.values())), features


def module_name(path):
    return ".".join(("gossamer", *path.with_suffix("").parts)).removesuffix(".__init__")


def imported(own, source, modules):
    """Modules that a file names in an import or in the homes of a lazy door, each once."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield f"{own}.{node.value}"


def one_importer(sources):
    """Modules, doors aside, that exactly one other module imports."""
    modules = {module_name(path) for path in sources}
    counts = Counter()
    for path, source in sources.items():
        own = module_name(path)
        counts.update((modules & set(imported(own, source, modules))) - {own})
    inner = {module_name(path) for path in sources if path.name != "__init__.py"}
    return sum(counts[name] == 1 for name in inner)


def twice(sources):
    names = Counter(
        node.name
        for source in sources.values()
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sum(number > 1 for number in names.values())


def measure(folder):
    """Names of what is counted, and the counts."""
    # The tests of doors and of layers count; they look at this tree unless told otherwise.
    test_doors.SOURCE = test_layer_tests.SOURCE = folder
    doors = {path.parent.relative_to(folder).parts: path for path in folder.rglob("__init__.py")}
    test_doors.PACKAGES = doors
    sources = {path.relative_to(folder): path.read_text() for path in folder.rglob("*.py")}
    total, added = counted_apart(sources)
    folders = Counter(path.parent for path in sources).most_common(5)
    yield "files", len(sources)
    yield "tokens of code", total
    for feature, number in added.items():
        yield f"  of these, {feature}", number
    yield "  without what was added", total - sum(added.values())
    yield "modules in the largest folders", ", ".join(f"{name} {n}" for name, n in folders)
    yield "modules with one importer", one_importer(sources)
    yield "public class names that appear twice", twice(sources)
    yield "type tests on layers outside nn/", sum(test_layer_tests.found().values())
    yield "imports past doors", sum(test_doors.all_past_doors().values())
    yield f"doors with more than {test_doors.WIDEST} names", len(test_doors.wide_doors())


def main():
    with tempfile.TemporaryDirectory() as folder:
        tree = ROOT
        if sys.argv[1:]:
            words = ["git", "-C", str(ROOT), "archive", sys.argv[1], "src"]
            archive = subprocess.run(words, check=True, capture_output=True).stdout
            with tarfile.open(fileobj=BytesIO(archive)) as files:
                files.extractall(folder, filter="data")
            tree = Path(folder)
        for name, number in measure(tree / "src" / "gossamer"):
            print(f"{name:40}{f'{number:,}' if isinstance(number, int) else number}")


if __name__ == "__main__":
    main()
