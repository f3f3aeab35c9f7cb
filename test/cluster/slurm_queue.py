"""A Slurm controller alone, for tests of what sbatch takes: jobs are submitted held and never start, so its nodes need not be there."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

from hosts import enter_own_namespaces, require, skip

ADDRESS = "10.213.7.254"
NODES, GPUS, CPUS = 32, 8, 128


class Queue:
    """`with Queue() as queue`: partitions debug (default) and big, nodes n[1-32] of 8 GPUs of type a100 and 1000 of nvme."""

    def __enter__(self):
        if os.geteuid() != 0:
            skip("a Slurm controller needs root")
        require("sbatch", "slurmctld", "munged", "ip", "unshare")
        if "DSTEST_OWN_NAMESPACES" not in os.environ:
            enter_own_namespaces()
        self.folder = pathlib.Path(os.environ.get("DSTEST_DIR", "/var/tmp/test-sbatch"))
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        # A name of the machine is found only where an interface has an address.
        subprocess.run(f"ip link add dsbr0 type bridge && ip addr add {ADDRESS}/24 dev dsbr0 && ip link set dsbr0 up", shell=True, check=True)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
        self._start()
        return self

    def __exit__(self, *_):
        for file in ("slurmctld.pid", "munge/pid"):
            try:
                os.kill(int((self.folder / file).read_text()), signal.SIGKILL)
            except (OSError, ValueError):
                pass
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self):
        munge = self.folder / "munge"
        subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "-m", "0755", munge], check=True)
        (munge / "key").write_bytes(os.urandom(128))
        shutil.chown(munge / "key", "munge", "munge")
        (munge / "key").chmod(0o400)
        subprocess.run(["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", f"--socket={munge}/sock", f"--key-file={munge}/key",
                        f"--log-file={munge}/log", f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", "--num-threads=2"], check=True)
        (self.folder / "slurm.conf").write_text(f"""ClusterName=dstest
SlurmctldHost={os.uname().nodename.split('.')[0]}({ADDRESS})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}/sock
SlurmctldPort=26817
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmctldLogFile={self.folder}/slurmctld.log
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu,nvme
Licenses=matlab:8
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
PropagateResourceLimits=NONE
MailProg=/bin/true
NodeName=n[1-{NODES}] NodeAddr={ADDRESS} CPUs={CPUS} RealMemory=512000 TmpDisk=100000 Gres=gpu:a100:{GPUS},nvme:1000 Feature=a100,v100,gpu,hbm80g State=UNKNOWN
PartitionName=debug Nodes=n[1-{NODES}] Default=YES MaxTime=INFINITE State=UP
PartitionName=big Nodes=n[1-{NODES}] MaxTime=INFINITE State=UP
""")
        (self.folder / "gres.conf").write_text(f"NodeName=n[1-{NODES}] Name=gpu Type=a100 File=/dev/null Count={GPUS}\n"
                                               f"NodeName=n[1-{NODES}] Name=nvme Count=1000\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        subprocess.run(["slurmctld", "-f", self.folder / "slurm.conf"], check=True, env=self.environment)
        end = time.monotonic() + 20
        while subprocess.run(["sinfo", "-h"], env=self.environment, capture_output=True).returncode != 0:
            if time.monotonic() > end:
                sys.exit((self.folder / "slurmctld.log").read_text())
            time.sleep(0.1)

    def run(self, *words):
        return subprocess.run([*map(str, words)], env=self.environment, capture_output=True, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, timeout=60, cwd=self.folder)

    def submit(self, script):
        """(number of the held job or None, the signal as sbatch understood it, what it said)."""
        done = self.run("sbatch", "-v", "--parsable", "--hold", script)
        told = re.search(r"^sbatch: signal +: (.*)$", done.stderr, re.M)
        job = done.stdout.strip()
        return (job if done.returncode == 0 and job.isdigit() else None), told and told[1], done.stderr

    def jobs(self):
        """{number: {key: value}} of all jobs, which are then cancelled."""
        found = {}
        for text in self.run("scontrol", "show", "job").stdout.split("\n\n"):
            # A value with blanks (Comment) reaches to the end of its line.
            pairs = dict(re.findall(r"(?:^|\s)([A-Za-z/:]+)=((?<=Comment=).*|\S*)", text))
            if pairs.get("JobState") == "PENDING":
                found[pairs["JobId"]] = pairs
        if found:
            self.run("scancel", *found)
        return found
