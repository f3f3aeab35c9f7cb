"""The scripts of `dstrain completion` complete commands, options, recipes and keys; those of zsh and fish, which are driven where they are
installed, hold the same words."""
import pathlib
import shutil
import subprocess
import tempfile

from support import DSTRAIN, ROOT, expect_success, run

bash = expect_success(run("completion", "bash"))
with tempfile.NamedTemporaryFile("w", suffix=".bash") as script:
    script.write(bash)
    script.flush()

    def completed(*words):
        """What bash offers for the last of the words."""
        line = " ".join(f"'{word}'" for word in ("dstrain", *words))
        text = f'source {script.name}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _dstrain; printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "--norc", "-c", text], capture_output=True, text=True, cwd="/")
        assert done.returncode == 0 and not done.stderr, done
        return done.stdout.split()

    assert completed("la") == ["launch"], completed("la")
    assert "agent" not in completed("a") and "words" not in completed("w"), completed("")
    assert {"plan", "recipe", "completion"} <= set(completed("")), completed("")
    assert completed("launch", "--hostf") == ["--hostfile"]
    assert completed("bench", "step", "--warm") == ["--warmup"]  # of the engine library
    assert completed("checkpoint", "exp") == ["export"]
    assert "--help" in completed("checkpoint", "export", "--")
    assert completed("launch", "quickst") == ["quickstart"]
    assert completed("launch", "quickstart", "--hostf") == ["--hostfile"]
    assert completed("launch", "quickstart", "--set", "parallel.zero.st") == ["parallel.zero.stage="]
    assert "etc" in completed("launch", "et"), completed("launch", "et")
for shell in ("zsh", "fish"):
    text = expect_success(run("completion", shell))
    for word in ("launch", "--hostfile", "quickstart", "parallel.zero.stage"):
        assert word in text, (shell, word)
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=text, text=True).returncode == 0, shell

# What Tab makes of a line.
LINES = {"dstrain la": "launch", "dstrain launch --hostf": "--hostfile", "dstrain launch quickst": "quickstart", "dstrain checkpoint exp": "export",
         "dstrain launch quickstart --set parallel.zero.st": "parallel.zero.stage="}
# $1 is the folder of the script: types $2 and Tab into zsh's own line editor, and prints what it shows until the words of $3 are there.
ZSH = r"""
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PS1=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -d $1/dump; bindkey '^I' complete-word; echo rea''dy"
repeat 400; do zpty -rt z out && all+=$out; [[ $all == *ready* ]] && break; sleep 0.05; done
zpty -wn z "$2"$'\t'
all=
repeat 400; do zpty -rt z out && all+=$out; [[ $all == *"$3"* ]] && break; sleep 0.05; done
print -r -- $all
"""
with tempfile.TemporaryDirectory() as scratch:
    for shell, name in (("zsh", "_dstrain"), ("fish", "dstrain.fish")):
        (pathlib.Path(scratch) / name).write_text(expect_success(run("completion", shell)))
    for line, word in LINES.items():
        if shutil.which("fish"):
            done = subprocess.run(["fish", "--no-config", "-c", f"source {scratch}/dstrain.fish; complete -C '{line}'"], capture_output=True, text=True,
                                  cwd=scratch, env={"HOME": scratch, "PATH": "/usr/bin:/bin"})
            assert word in done.stdout.split(), (line, done)
        if shutil.which("zsh"):
            done = subprocess.run(["zsh", "-f", "-c", ZSH, "zsh", scratch, line, word], capture_output=True, text=True, timeout=100, cwd=scratch)
            assert word in done.stdout, (line, done)
assert run("completion", "tcsh").returncode == 64
# Without the engine library help, what plan refuses by its options and what only reads checkpoints are there.
with tempfile.TemporaryDirectory() as scratch:
    alone = shutil.copy(DSTRAIN, pathlib.Path(scratch) / "dstrain")
    for arguments, code, words in ((["plan", "--help"], 0, "--longest"), (["plan", "recipes/quickstart.yaml", "--rank", 2], 64, "--ranks"),
                                   (["checkpoint", "--help"], 0, "inspect"), (["checkpoint", "list", scratch], None, "checkpoint"),
                                   (["plan", "recipes/quickstart.yaml"], 69, "engine is not there")):
        done = subprocess.run([alone, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=100)
        assert words in done.stdout + done.stderr and (code is None or done.returncode == code), (arguments, done)
        assert arguments[:1] == ["plan"] or "engine" not in done.stderr, done
print("completion: ok")
