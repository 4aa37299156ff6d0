"""The running node: its namespaces, its programs in their order, the way in from outside, and its volumes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import image
from shared import CACHE, SetupError, run, say

KUBERNETES = "1.36.3"

FOLDER = CACHE / f"node-{KUBERNETES}"
PROGRAMS = FOLDER / "bin"
STORE = FOLDER / "containerd"  # images, kept from one node to the next
RUN = FOLDER / "run"  # everything of the one node that runs
SUPERVISOR = FOLDER / "supervisor.json"  # who holds the node, and for whom
SOCKET = RUN / "containerd.sock"
READY = RUN / "ready"

NAME = "trainstack-node"
ADDRESS = "10.87.0.1"  # these are addresses of the node's own network, which nobody else sees
POD_RANGE = "10.88.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
SERVER = "https://localhost:6443"
PAUSE = "localhost/trainstack-pause:1"
PROVISIONER = "trainstack/folders"

# Folders that the programs write to and that cannot be set; the node sees folders of its own in their places.
COVERED = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers")

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG = 1


# ------------------------------------------------------------------------------------------ begin and end


def serve(for_process: int | None) -> None:
    """Runs the node until it is told to end, or until the process that it is for has ended.

    This process stays outside of the node's namespaces, because it clears up after them. What listens outside is made here too.
    """
    SUPERVISOR.write_text(json.dumps({"self": identity(os.getpid()), "owner": identity(for_process) if for_process else None}))
    (RUN / "covered").write_text("\n".join(name for name in COVERED if not Path(name).exists()))
    for name in COVERED:
        Path(name).mkdir(parents=True, exist_ok=True)
    listener = socket.create_server(("127.0.0.1", 0))
    unshare(CLONE_NEWPID)  # it is for the children of this process
    first = os.fork()
    if first == 0:
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            unshare(CLONE_NEWNS | CLONE_NEWNET)
            inside(listener)
        except SetupError as error:
            say(str(error))
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    # The first process of a process namespace takes all others with it, and it is gone only when they are.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
    while os.waitpid(first, os.WNOHANG) == (0, 0):
        if for_process and not owner():
            os.kill(first, signal.SIGKILL)
        time.sleep(0.2)
    clean()


def unshare(kinds: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(kinds):
        raise SetupError(f"this machine gives a node no namespaces of its own: {os.strerror(ctypes.get_errno())}.")


def supervisor() -> int | None:
    """The process that holds the node, if it is alive."""
    return alive("self")


def owner() -> int | None:
    """The process that the node is for, if it is for one and that is alive."""
    return alive("owner")


def alive(role: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        written = json.loads(SUPERVISOR.read_text())[role]
        if written and identity(written[0]) == written:
            return int(written[0])
    return None


def identity(pid: int) -> list[int] | None:
    """A process by its number and its start, in ticks of the clock: the number alone may be somebody else's by now."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] != "Z":
            return [pid, int(fields[19])]
    return None


def clean() -> None:
    """Removes what a node leaves that the kernel does not take away: its data, its control groups, and folders it had to make."""
    with contextlib.suppress(OSError):
        for name in (RUN / "covered").read_text().split():
            with contextlib.suppress(OSError):
                Path(name).rmdir()
    if RUN.exists():
        shutil.rmtree(RUN)
    groups = Path("/sys/fs/cgroup")
    for top in [*groups.glob(NAME), *groups.glob(f"*/{NAME}")]:
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
    SUPERVISOR.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------- inside


class Programs:
    """The node's programs. One that ends later is started again, as on any node; one that ends while the node starts is a failure."""

    def __init__(self) -> None:
        self.commands: dict[str, list[str]] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str | Path) -> None:
        self.commands[name] = [str(part) for part in command]
        self.again(name)

    def again(self, name: str) -> None:
        with (RUN / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(self.commands[name], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=RUN)

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        process.terminate()
        process.wait()

    def wait(self, what: str, condition: Callable[[], object], seconds: float = 60) -> None:
        say(f"waiting for {what}")
        until = time.monotonic() + seconds
        while not condition():
            for name, process in self.running.items():
                if process.poll() is not None:
                    raise SetupError(f"{name} ended with {process.returncode}:\n{last_lines(name)}")
            if time.monotonic() > until:
                raise SetupError(f"{what} did not come within {seconds:.0f} s:\n{last_lines(list(self.running)[-1])}")
            time.sleep(0.1)

    def supervise(self) -> None:
        """The first process also buries the processes whose parents are gone."""
        while True:
            time.sleep(0.5)
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                name = next((name for name, process in self.running.items() if process.pid == ended.si_pid), None)
                if name is None:
                    os.waitpid(ended.si_pid, 0)
                    continue
                say(f"{name} ended with {self.running[name].wait()}; starting it again")
                time.sleep(1)
                self.again(name)


def last_lines(name: str) -> str:
    return "\n".join((RUN / f"{name}.log").read_text(errors="replace").splitlines()[-10:])


def inside(listener: socket.socket) -> None:
    """The first process of the node's own namespaces brings the node up."""
    prepare_machine()
    programs = Programs()
    start_runtime(programs)
    start_control_plane(programs)
    start_node(programs)
    threading.Thread(target=lambda: asyncio.run(forward(listener)), daemon=True).start()
    threading.Thread(target=provision, daemon=True).start()
    write_kubeconfig("kubeconfig", f"https://localhost:{listener.getsockname()[1]}")
    READY.touch()
    programs.supervise()


def prepare_machine() -> None:
    run(["mount", "--make-rprivate", "/"])
    run(["mount", "-t", "proc", "proc", "/proc"])
    run(["mount", "-t", "tmpfs", "tmpfs", "/run"])
    for name in COVERED:
        own = RUN / name.lstrip("/")
        own.mkdir(parents=True)
        run(["mount", "--bind", own, name])
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"])
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def start_runtime(programs: Programs) -> None:
    """containerd, with the images of the last node and without its containers."""
    (RUN / "cni").mkdir()
    network = {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            # Each pod has a link of its own to the node, so that packets between pods pass the node's filters and Services work
            # without a bridge and the kernel module that lets a bridge's packets be filtered.
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(RUN / "addresses"),
                    "ranges": [[{"subnet": POD_RANGE}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }
    (RUN / "cni" / "pods.conflist").write_text(json.dumps(network))
    unused = ["aufs", "btrfs", "devmapper", "zfs"]
    disabled = [f"io.containerd.snapshotter.v1.{name}" for name in unused]
    cri = f"""
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{RUN}/cni"
"""
    for name, more_disabled, more in (("clearing", ["io.containerd.grpc.v1.cri"], ""), ("containerd", [], cri)):
        lines = f"""version = 2
root = "{STORE}"
state = "/run/containerd"
disabled_plugins = {json.dumps(disabled + more_disabled)}
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{RUN}/opt"
{more}"""
        (RUN / f"{name}.toml").write_text(lines)
        programs.start(name, "containerd", "--config", RUN / f"{name}.toml")
        programs.wait("containerd", lambda: image.answers(SOCKET))
        if name == "clearing":
            image.forget_containers(SOCKET)
            programs.stop(name)
    if PAUSE not in image.names(SOCKET):
        image.load(SOCKET, PAUSE, [image.layer_of(RUN / "pause.tar", {"pause": PROGRAMS / "pause"})], {"Entrypoint": ["/pause"]})


def start_control_plane(programs: Programs) -> None:
    keys = RUN / "keys"
    keys.mkdir()
    run(["openssl", "genrsa", "-out", keys / "accounts.key", "2048"])
    (keys / "token").write_text(secrets.token_urlsafe(24))
    (keys / "tokens.csv").write_text(f'{(keys / "token").read_text()},admin,admin,"system:masters"\n')
    store = "http://127.0.0.1:2379"
    programs.start(
        "etcd",
        PROGRAMS / "etcd",
        f"--data-dir={RUN}/etcd",
        f"--listen-client-urls={store}",
        f"--advertise-client-urls={store}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",  # nothing of it is kept
    )
    programs.wait("etcd", lambda: listens(2379))
    programs.start(
        "kube-apiserver",
        PROGRAMS / "kube-apiserver",
        f"--etcd-servers={store}",
        f"--advertise-address={ADDRESS}",
        f"--cert-dir={keys}",
        f"--service-account-key-file={keys}/accounts.key",
        f"--service-account-signing-key-file={keys}/accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--token-auth-file={keys}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--allow-privileged",
    )
    programs.wait("the API server", lambda: answered(lambda: request("GET", "/readyz")), 120)
    write_kubeconfig("inside", SERVER)
    programs.start(
        "kube-controller-manager",
        PROGRAMS / "kube-controller-manager",
        f"--kubeconfig={RUN}/inside",
        f"--root-ca-file={keys}/apiserver.crt",
        f"--service-account-private-key-file={keys}/accounts.key",
        "--use-service-account-credentials",
        f"--flex-volume-plugin-dir={RUN}/plugins",
        "--leader-elect=false",
    )
    programs.start("kube-scheduler", PROGRAMS / "kube-scheduler", f"--kubeconfig={RUN}/inside", "--leader-elect=false")


def start_node(programs: Programs) -> None:
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "address": ADDRESS,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},  # only the node's own network reaches it
        "clusterDNS": [ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        # The machine's control groups may be of either version, and some kinds may be missing; limits of containers hold all the same.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "cgroupRoot": f"/{NAME}",
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "maxPods": 250,
        "volumePluginDir": str(RUN / "plugins"),
        # The disk is the machine's, and may be full for reasons of its own.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
    }
    (RUN / "kubelet.json").write_text(json.dumps(kubelet))
    access = f"--kubeconfig={RUN}/inside"
    programs.start(
        "kubelet", PROGRAMS / "kubelet", f"--config={RUN}/kubelet.json", access, f"--hostname-override={NAME}", f"--node-ip={ADDRESS}"
    )
    programs.start(
        "kube-proxy",
        PROGRAMS / "kube-proxy",
        access,
        f"--hostname-override={NAME}",
        "--proxy-mode=iptables",
        "--conntrack-max-per-core=0",  # the machine's, which a network of its own may not set
        "--oom-score-adj=0",
    )
    # Names of pods are known as soon as the pods are, and unknown names are refused at once: nothing is remembered.
    zones = f"""
cluster.local:53 in-addr.arpa:53 {{
    bind {ADDRESS}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {RUN}/inside
    }}
}}
.:53 {{
    bind {ADDRESS}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""
    (RUN / "Corefile").write_text(zones)
    programs.start("coredns", PROGRAMS / "coredns", "-conf", RUN / "Corefile")
    programs.wait("the names of Services", lambda: listens(53, ADDRESS))
    programs.wait("the node to be ready", lambda: answered(ready), 120)


def ready() -> bool:
    conditions = request("GET", f"/api/v1/nodes/{NAME}")["status"]["conditions"]
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def listens(port: int, address: str = "127.0.0.1") -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


# ------------------------------------------------------------------------------------------------- its API


def request(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    context = ssl.create_default_context(cafile=RUN / "keys" / "apiserver.crt")
    headers = {"Authorization": f"Bearer {(RUN / 'keys' / 'token').read_text()}", "Content-Type": "application/json"}
    asked = urllib.request.Request(SERVER + path, json.dumps(body).encode() if body else None, headers, method=method)
    with urllib.request.urlopen(asked, timeout=10, context=context) as answer:
        text = answer.read().decode()
    return json.loads(text) if text.startswith("{") else text


def answered(call: Callable[[], Any]) -> Any:
    """What the API says, or nothing while it does not answer yet."""
    with contextlib.suppress(OSError, ssl.SSLError):
        return call()
    return None


def write_kubeconfig(name: str, server: str) -> None:
    authority = base64.b64encode((RUN / "keys" / "apiserver.crt").read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": "admin", "user": {"token": (RUN / "keys" / "token").read_text()}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": "admin"}}],
        "current-context": NAME,
    }
    (RUN / name).write_text(json.dumps(config, indent=2) + "\n")
    (RUN / name).chmod(0o600)


async def forward(listener: socket.socket) -> None:
    """Whatever comes in on the port outside goes to the API server inside."""

    async def pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        with contextlib.suppress(OSError, RuntimeError):
            target.write_eof()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", 6443)
            await asyncio.gather(pipe(reader, inner_writer), pipe(inner_reader, writer))
            inner_writer.close()
        writer.close()

    async with await asyncio.start_server(connect, sock=listener) as server:
        await server.serve_forever()


# ------------------------------------------------------------------------------------------------- volumes


def provision() -> None:
    """Makes a folder for each claim of the default class and removes it after the claim, as a cluster's storage driver would.

    Kubernetes' own provisioner for tests makes folders that only root may write to. These are `local` volumes, so the kubelet
    gives them to a pod's fsGroup, and they may be claimed as ReadWriteMany too.
    """
    storage = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    request("POST", "/apis/storage.k8s.io/v1/storageclasses", storage)
    while True:
        try:
            for claim in request("GET", "/api/v1/persistentvolumeclaims")["items"]:
                if wants_volume(claim):
                    make_volume(claim)
            for volume in request("GET", "/api/v1/persistentvolumes")["items"]:
                if wants_removal(volume):
                    remove_volume(volume)
        except OSError as error:  # the API server was busy, or an object changed under our hands: the next round sees it as it is
            say(f"volumes: {error}")
        time.sleep(0.5)


def wants_volume(claim: dict[str, Any]) -> bool:
    asked = claim["metadata"].get("annotations", {}).get("volume.kubernetes.io/storage-provisioner")
    return asked == PROVISIONER and not claim["spec"].get("volumeName") and "deletionTimestamp" not in claim["metadata"]


def make_volume(claim: dict[str, Any]) -> None:
    metadata = claim["metadata"]
    name = f"pvc-{metadata['uid']}"
    folder = RUN / "volumes" / name
    if folder.exists():
        return  # made in an earlier round, and not bound yet
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {
            "accessModes": claim["spec"]["accessModes"],
            "capacity": claim["spec"]["resources"]["requests"],
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
            | {key: metadata[key] for key in ("name", "namespace", "uid")},
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": claim["spec"]["storageClassName"],
        },
    }
    folder.mkdir(parents=True)
    try:
        request("POST", "/api/v1/persistentvolumes", volume)
    except OSError:
        folder.rmdir()
        raise


def wants_removal(volume: dict[str, Any]) -> bool:
    made_here = volume["metadata"].get("annotations", {}).get("pv.kubernetes.io/provisioned-by") == PROVISIONER
    policy = volume["spec"]["persistentVolumeReclaimPolicy"]
    return made_here and volume["status"]["phase"] == "Released" and policy == "Delete" and "deletionTimestamp" not in volume["metadata"]


def remove_volume(volume: dict[str, Any]) -> None:
    shutil.rmtree(volume["spec"]["local"]["path"], ignore_errors=True)
    request("DELETE", f"/api/v1/persistentvolumes/{volume['metadata']['name']}")
