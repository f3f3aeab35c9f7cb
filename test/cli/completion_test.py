"""The script of `dstrain completion bash` completes commands, options, recipes and keys; those of zsh and fish hold the same words."""
import shutil
import subprocess
import tempfile

from support import expect_success, run

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
    assert completed("plan", "--ran") == ["--ranks"]  # of the engine library
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
assert run("completion", "tcsh").returncode == 64
print("completion: ok")
