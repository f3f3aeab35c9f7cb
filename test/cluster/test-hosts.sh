#!/bin/bash
# test-hosts.sh up N | slurm-up | slurm-down | down | cut hK | heal hK | drop hK | undrop hK | crash hK
#
# N fake hosts h1..hN on this machine, for tests of multi-host launching: each has its own network, host name and process
# space, an address 10.213.7.K, an sshd and a private /tmp; the rest of the file system is shared. `slurm-up` adds a
# Slurm cluster of these hosts. Faults: `cut` pulls the cable, `drop` makes a silent black hole, `crash` is a loss of
# power. Needs root and openssh-server, iproute2, iptables, util-linux, procps; for Slurm munge, slurmctld, slurmd,
# slurm-client, slurm-wlm-basic-plugins. Touches only what it makes, and `down` takes all of that away.
#
# Variables: DSTEST_DIR (state; not below /tmp, which is private to each host), GPUS and CPUS of a Slurm node,
# MAX_STARTUPS of each sshd (default: sshd's own).
set -eu
dir=${DSTEST_DIR:-/var/tmp/test-hosts}
net=10.213.7 bridge=dsbr0 gpus=${GPUS:-4} cpus=${CPUS:-4}
export PATH=$PATH:/usr/sbin:/sbin

# Files of all hosts; then the hosts side by side, since each spends most of its time waiting.
# A checkout below /tmp is seen by all hosts all the same.
show_checkout() {
  local root; root=$(cd "$(dirname "$0")/../.." && pwd)
  case $root in /tmp/*) echo "mkdir -p $dir/$1/$root; mount --bind $root $dir/$1/$root;" ;; esac
}

up() {
  local n=$1 i
  trap 'trap - EXIT; down' EXIT
  mkdir -p "$dir" /run/sshd
  cd "$dir"
  [ -f id ] || ssh-keygen -q -t ed25519 -N '' -f id
  install -m 600 id.pub authorized_keys
  { echo "127.0.0.1 localhost"; for i in $(seq "$n"); do echo "$net.$i h$i"; done; } >hosts
  cat >ssh_config <<CONFIG
Host h*
  User root
  IdentityFile $dir/id
  IdentitiesOnly yes
  UserKnownHostsFile $dir/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 5
  ServerAliveInterval 2
  ServerAliveCountMax 3
CONFIG
  for i in $(seq "$n"); do
    printf 'Host h%s\n  HostName %s.%s\n  HostKeyAlias h%s\n' "$i" "$net" "$i" "$i"
  done >>ssh_config
  ip link add $bridge type bridge
  ip addr add $net.254/24 dev $bridge
  ip link set $bridge up
  for i in $(seq "$n"); do
    up_host "$i" &
    [ $((i % 8)) -ne 0 ] || wait
  done
  wait
  : >known_hosts
  : >hostfile
  for i in $(seq "$n"); do
    echo "h$i,$net.$i $(cut -d' ' -f1,2 "h$i/key.pub")" >>known_hosts
    echo "h$i slots=2" >>hostfile
  done
  for i in $(seq "$n"); do wait_for_sshd "$i"; done
  trap - EXIT
}

up_host() {
  local i=$1 h=h$1 ns=ds-h$1
  mkdir -p "$h/tmp" "$h/home" "/etc/netns/$ns"
  chmod 1777 "$h/tmp"
  cp hosts "/etc/netns/$ns/hosts"  # `ip netns exec` binds it over /etc/hosts
  [ -f "$h/key" ] || ssh-keygen -q -t ed25519 -N '' -f "$h/key" -C "$h"
  ip netns add "$ns"
  ip link add "$ns" type veth peer name eth0 netns "$ns"
  ip link set "$ns" master $bridge up
  printf '%s\n' "addr add $net.$i/24 dev eth0" "link set eth0 up" "link set lo up" | ip -n "$ns" -batch -
  printf '%s\n' "Port 22" "ListenAddress $net.$i" "HostKey $dir/$h/key" "PidFile none" \
    "AuthorizedKeysFile $dir/authorized_keys" "PasswordAuthentication no" "KbdInteractiveAuthentication no" \
    "UsePAM no" "StrictModes no" "PermitRootLogin yes" "PrintMotd no" "AcceptEnv DSTRAIN_*" \
    "SetEnv HOME=$dir/$h/home" >"$h/sshd_config"  # a login is not slowed by this machine's ~/.bashrc
  [ -z "${MAX_STARTUPS:-}" ] || echo "MaxStartups $MAX_STARTUPS" >>"$h/sshd_config"
  setsid ip netns exec "$ns" unshare --uts --pid --fork --mount --mount-proc --kill-child \
    sh -c "hostname $h; $(show_checkout "$h") mount --rbind $dir/$h/tmp /tmp; exec /usr/sbin/sshd -D -e -f $dir/$h/sshd_config" \
    >"$h/sshd.log" 2>&1 </dev/null &
}

wait_for_sshd() {
  local greeting
  for _ in $(seq 100); do
    if read -r -t 2 greeting 2>/dev/null <"/dev/tcp/$net.$1/22" && [ -n "$greeting" ]; then return 0; fi
    sleep .05
  done 2>/dev/null
  echo "test-hosts.sh: no sshd on h$1: $(tail -n 3 "$dir/h$1/sshd.log")" >&2
  return 1
}

# Nodes h1..hN with fake GPUs: Slurm sets CUDA_VISIBLE_DEVICES only for character devices called nvidiaK.
slurm_up() {
  cd "$dir"
  local n slurm=$dir/slurm munge=$dir/slurm/munge i
  n=$(wc -l <hostfile)
  mkdir -p "$slurm"/{state,log,run,spool,gpu}
  install -d -o munge -g munge -m 0755 "$munge"
  [ -f "$munge/key" ] || {
    head -c 128 /dev/urandom >"$munge/key"
    chown munge:munge "$munge/key"
    chmod 400 "$munge/key"
  }
  setpriv --reuid=munge --regid=munge --clear-groups munged --socket="$munge/sock" --key-file="$munge/key" \
    --log-file="$munge/log" --pid-file="$munge/pid" --seed-file="$munge/seed" --num-threads=4
  for i in $(seq 0 $((gpus - 1))); do [ -e "$slurm/gpu/nvidia$i" ] || mknod "$slurm/gpu/nvidia$i" c 195 "$i"; done
  cat >"$slurm/slurm.conf" <<CONFIG
ClusterName=dstest
SlurmctldHost=$(hostname -s)($net.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$munge/sock,cred_expire=5
SlurmctldPort=26817
SlurmdPort=26818
SlurmctldPidFile=$slurm/run/slurmctld.pid
SlurmdPidFile=$slurm/run/slurmd-%n.pid
SlurmctldLogFile=$slurm/log/slurmctld.log
SlurmdLogFile=$slurm/log/slurmd-%n.log
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool/%n
TmpFS=/tmp
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=5
UnkillableStepTimeout=15
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
PropagateResourceLimits=NONE
MailProg=/bin/true
NodeName=h[1-$n] NodeAddr=$net.[1-$n] CPUs=$cpus Gres=gpu:$gpus State=UNKNOWN
PartitionName=debug Nodes=h[1-$n] Default=YES MaxTime=INFINITE State=UP
CONFIG
  echo "NodeName=h[1-$n] Name=gpu File=$slurm/gpu/nvidia[0-$((gpus - 1))] Flags=nvidia_gpu_env" >"$slurm/gres.conf"
  echo 'CgroupPlugin=cgroup/v1' >"$slurm/cgroup.conf"  # else slurmd wants a mounted /sys/fs/cgroup
  slurmctld -f "$slurm/slurm.conf"
  for i in $(seq "$n"); do
    mkdir -p "$slurm/spool/h$i"
    ssh -F ssh_config "h$i" "exec env SLURM_CONF=$slurm/slurm.conf /usr/sbin/slurmd -f $slurm/slurm.conf -N h$i" </dev/null
  done
  for _ in $(seq 200); do
    [ "$(SLURM_CONF=$slurm/slurm.conf sinfo -h -N -t idle | wc -l)" != "$n" ] || return 0
    sleep .1
  done
  echo "test-hosts.sh: the Slurm nodes did not become idle" >&2
  return 1
}

pids_of() { ip netns pids "$1" 2>/dev/null || :; }

wait_gone() {
  for _ in $(seq 100); do
    case $(cut -d' ' -f3 "/proc/$1/stat" 2>/dev/null) in '' | Z) return 0 ;; esac
    sleep .1
  done
  kill -9 "$1" 2>/dev/null || :
}

slurm_down() {
  local ns file pid
  for ns in /run/netns/ds-h*; do
    for pid in $(pids_of "${ns##*/}"); do
      case $(cat "/proc/$pid/comm" 2>/dev/null) in slurmd | slurmstepd) kill -9 "$pid" 2>/dev/null || : ;; esac
    done
  done
  for file in "$dir/slurm/run/slurmctld.pid" "$dir/slurm/munge/pid"; do
    [ -s "$file" ] || continue
    pid=$(cat "$file")
    kill "$pid" 2>/dev/null || :
    wait_gone "$pid"
  done
}

# Goes by what is there, not by what `up` has noted, so that it also clears a half-made set.
down() {
  set +e
  local ns name pid
  slurm_down
  for ns in /run/netns/ds-h* /etc/netns/ds-h*; do
    name=${ns##*/}
    [ -e "$ns" ] || continue
    for pid in $(pids_of "$name"); do kill -9 "$pid" 2>/dev/null; done
    ip netns del "$name" 2>/dev/null
    ip link del "$name" 2>/dev/null
    rm -rf "/etc/netns/$name"
  done
  rmdir /etc/netns 2>/dev/null
  ip link del $bridge 2>/dev/null
  cd /
  rm -rf "$dir"
  set -e
}

case ${1:-} in
  up) up "${2:?how many hosts?}" ;;
  slurm-up) slurm_up ;;
  slurm-down) slurm_down ;;
  down) down ;;
  cut) ip link set "ds-$2" down ;;
  heal) ip link set "ds-$2" up ;;
  drop) ip netns exec "ds-$2" iptables -I INPUT -i eth0 -j DROP ;;
  undrop) ip netns exec "ds-$2" iptables -D INPUT -i eth0 -j DROP ;;
  crash)
    pids=$(pids_of "ds-$2")
    for pid in $pids; do kill -9 "$pid" 2>/dev/null || :; done
    for pid in $pids; do wait_gone "$pid"; done
    ;;
  *)
    sed -n '2,2s/^# //p' "$0" >&2
    exit 64
    ;;
esac
