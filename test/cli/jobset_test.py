"""`dstrain launch --emit jobset`: the manifest holds the published schemas of JobSet, Job and Pod (kubernetes/), the recipe, and no secret; what
it cannot say is refused. Whether its environment starts a job is for test/cluster/kubernetes_test.py."""
import json
import os
import pathlib
import re
import tempfile

import yaml

from support import ROOT, run

SCHEMAS = json.loads((ROOT / "test/cli/kubernetes/schemas.json").read_text())
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
KUBERNETES = ["--image", "example.org/dstrain:1.0", "--claim", "workspace"]


def wrong(value, schema, at):
    """The first place where a value is not as the schema says, and why; None: it is."""
    while "$ref" in schema:
        schema = SCHEMAS[schema["$ref"]]
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(type(value) is TYPES[name] for name in types):
        return f"{at}: {value!r} is no {' or '.join(types)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{at}: {value!r} is none of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value) or "maxLength" in schema and len(value) > schema["maxLength"]:
        return f"{at}: {value!r} is no such name"
    if isinstance(value, dict):
        if len(value) > schema.get("maxProperties", len(value)):
            return f"{at}: {len(value)} fields"
        known, others = schema.get("properties", {}), schema.get("additionalProperties", False)
        for name in schema.get("required", []):
            if name not in value:
                return f"{at}: {name} is missing"
        for name, content in value.items():
            of = known.get(name, others)
            if of is False:
                return f"{at}: {name} is no field of it"
            if found := wrong(content, of, f"{at}.{name}"):
                return found
    if isinstance(value, list):
        for number, item in enumerate(value):
            if found := wrong(item, schema["items"], f"{at}[{number}]"):
                return found
    return None


def emit(*options, recipe="recipes/quickstart.yaml", **how):
    done = run("launch", recipe, "--emit", "jobset", *options, **how)
    assert done.returncode == 0 and done.stderr == "", (done.returncode, done.stderr)
    return done.stdout


def documents(text):
    """ConfigMap and JobSet, which must be as published."""
    config, jobs = yaml.safe_load_all(text)
    for value, kind in ((config, "ConfigMap"), (jobs, "JobSet")):
        assert (found := wrong(value, SCHEMAS[kind], kind)) is None, found
    job = jobs["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    # What the cluster checks beyond the schemas (API reference of Job: podFailurePolicy).
    assert pod["restartPolicy"] == "Never" and job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"], job
    for rule in job["podFailurePolicy"]["rules"]:
        assert ("onExitCodes" in rule) != ("onPodConditions" in rule), rule
        codes = rule.get("onExitCodes", {"values": [1], "containerName": pod["containers"][0]["name"]})
        assert codes["values"] == sorted(set(codes["values"])) and 0 not in codes["values"], rule
        assert codes["containerName"] == pod["containers"][0]["name"], rule
    name = jobs["metadata"]["name"]
    assert len(f"{name}-train-0-65535-xxxxx") <= 63 and jobs["spec"]["network"]["subdomain"] == name, name
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert volumes == {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}, volumes
    return config, jobs, pod["containers"][0]


def test_manifests(folder):
    """CPU and GPU jobs, with and without RDMA; the recipe in it is the one that was asked for."""
    documents((ROOT / "test/launcher/golden/jobset.yaml").read_text())
    config, jobs, container = documents(emit("--nodes", 4, "--ranks-per-node", 2, "--set", "run.epochs=7", "--max-restarts", 3, *KUBERNETES))
    assert jobs["metadata"]["name"] == "quickstart" and "resources" not in container, jobs
    assert container["command"] == ["dstrain", "launch", "/etc/dstrain/recipe.yaml", "--run-name", "quickstart", "--resume", "auto",
                                    "--max-restarts", "3", "--ranks", "8"], container
    _, _, resumed = documents(emit("--nodes", 4, *KUBERNETES, "--resume", "runs/earlier"))
    assert resumed["command"][3:7] == ["--run-name", "quickstart", "--resume", "runs/earlier"], resumed
    kept = folder / "recipe.yaml"
    kept.write_text(config["data"]["recipe.yaml"])
    resolved = yaml.safe_load(config["data"]["recipe.yaml"])
    assert resolved["run"]["epochs"] == 7 and resolved["model"]["width"] == 128, resolved
    assert run("recipe", "check", kept).returncode == 0
    environment = {entry["name"]: entry for entry in container["env"]}
    assert environment["DSTRAIN_HOSTS"]["value"] == "4"
    assert environment["DSTRAIN_CONTROLLER"]["value"] == "quickstart-train-0-0.quickstart"
    assert environment["DSTRAIN_JOIN_SECRET"]["valueFrom"]["secretKeyRef"] == {"name": "quickstart-join", "key": "secret"}

    _, jobs, container = documents(emit("--nodes", 16, "--gpus-per-node", 8, "--rdma-resource", "rdma/ib", "--run-name", "true", *KUBERNETES,
                                        "--env", "GREETING=it's \"here\": #1", recipe="recipes/vit/vit-base_cifar100_zero2.yaml"))
    assert jobs["metadata"]["name"] == "true", jobs["metadata"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "rdma/ib": 1}, container
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}, container
    assert container["command"][-2:] == ["--env", "GREETING=it's \"here\": #1"] and "--ranks" not in container["command"], container
    # In five words: hosts and GPUs of each.
    _, jobs, container = documents(run("launch", "vit-base", "zero2", "2", "8", "64", "10", "--emit", "jobset", *KUBERNETES).stdout)
    assert jobs["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] == 2, jobs
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}, container


def test_the_check_itself(_):
    """A manifest with a mistake of each kind is found out."""
    text = emit("--nodes", 2, *KUBERNETES)
    for right, mistake, said in (("backoffLimit:", "backofLimit:", "backofLimit is no field of it"), ("completions: 2", "completions: two", "no integer"),
                                 ("action: FailJobSet", "action: Fail", "is none of"), ("key: secret", "kee: secret", "key is missing"),
                                 ('name: "quickstart"', 'name: "Quick_start"', "is no such name"), ("value: \"2\"", "value: 2", "no string")):
        assert right in text, right
        config, jobs = yaml.safe_load_all(text.replace(right, mistake))
        found = wrong(jobs, SCHEMAS["JobSet"], "JobSet")
        assert found and said in found, (mistake, found)


def test_refusals(folder):
    def refused(words, *options, code=64, **how):
        done = run("launch", "recipes/quickstart.yaml", "--emit", "jobset", *options, **how)
        assert done.returncode == code and done.stdout == "" and words in done.stderr, (options, done.returncode, done.stdout[-300:], done.stderr)

    refused("--emit jobset needs --image", "--claim", "workspace")
    refused("--emit jobset needs --claim", "--image", "x")
    refused("--image 'a b' is no such name", "--image", "a b", "--claim", "workspace")
    for option, value in (("--time", "1:00"), ("--partition", "p"), ("--setup", "x"), ("--sbatch=--exclusive", None)):
        refused("has no meaning with --emit jobset", *KUBERNETES, *[word for word in (option, value) if word])
    refused("--hosts or --hostfile has no meaning", *KUBERNETES, "--hosts", "a:1")
    # Before the job waits in a queue: what ranks would refuse of the model.
    refused("parallel.tensor: 3 must divide 4 heads", *KUBERNETES, "--nodes", 3, "--set", "parallel.tensor=3", "--set", "batch.global=64")
    refused("--slurm has no meaning", *KUBERNETES, "--slurm")
    refused("a type in --gpus-per-node has no meaning", *KUBERNETES, "--gpus-per-node", "a100:8")
    refused("--run-name 'My_Run': a JobSet has the name of its run", *KUBERNETES, "--run-name", "My_Run")
    refused("run.output: /data/runs is no folder below /workspace", *KUBERNETES, "--set", "run.output=/data/runs")
    refused("run.output: ../runs is no folder below /workspace", *KUBERNETES, "--set", "run.output=../runs")
    emit(*KUBERNETES, "--set", "run.output=/workspace/a/runs")
    done = run("launch", "recipes/quickstart.yaml", *KUBERNETES)
    assert done.returncode == 64 and "--image requires --emit jobset" in done.stderr, done
    # The recipe does not fit so many ranks: said now, not in the cluster.
    refused("parallel.tensor", *KUBERNETES, "--nodes", 5, "--ranks-per-node", 1, "--set", "parallel.tensor=2")
    token = "hf_0123456789abcdefghij"
    refused("the manifest would hold the value of the variable HF_TOKEN", *KUBERNETES, "--env", f"HF_TOKEN={token}")
    refused("would hold the value of the variable HF_TOKEN", *KUBERNETES, "--env", f"NAME={token}", env={**os.environ, "HF_TOKEN": token})


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            with tempfile.TemporaryDirectory() as made:
                test(pathlib.Path(made))
            print(f"{name}: ok", flush=True)
