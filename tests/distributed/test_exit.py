"""Processes that end without any clean-up must end well: one template, forked for each case."""

import json
import subprocess
import sys
import textwrap

SCRIPT = """
    import json, os, sys, time
    import torch, torch.distributed as dist
    from gradwire.comm.shaped import Link, ShapedMailbox
    from gradwire.comm.shaped_group import new_shaped_group
    from gradwire.comm.torch_dist import TorchMailbox

    def work(rank, store, ending):
        global mailbox, group, pending  # alive until the interpreter ends
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
        peer, data, box = 1 - rank, torch.ones(10000), torch.zeros(10000)
        if ending == "group":
            group = new_shaped_group()
            group.link = Link(1e6)
            dist.all_reduce(data, group=group)
            pending = dist.all_reduce(torch.ones(10**6), group=group, async_op=True)
            return
        mailbox = TorchMailbox(None)
        if ending == "shaped":
            mailbox = ShapedMailbox(mailbox, Link(1e5))
        for tag in range(3):
            pending = mailbox.exchange(tag, {peer: data}, {peer: box})
            if ending != "shaped":
                pending.result()
        if ending == "outstanding":
            for tag in range(100):
                pending = mailbox.exchange(tag, {}, {peer: box})
                pending.add_done_callback(lambda _: time.sleep(0.001))
        if ending == "forgotten":
            del mailbox
        if ending == "exception":
            raise ValueError("the end")
        if ending == "interrupt":
            raise KeyboardInterrupt

    codes = {}
    for ending in sys.argv[2:]:
        ranks = []
        for rank in range(2):
            pid = os.fork()
            if pid == 0:
                work(rank, os.path.join(sys.argv[1], ending), ending)
                sys.exit(0)
            ranks.append(pid)
        codes[ending] = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    print(json.dumps(codes))
"""


def test_processes_end_well_without_any_clean_up(tmp_path):
    expected = {
        "plain": 0,
        "outstanding": 0,
        "forgotten": 0,
        "shaped": 0,
        "group": 0,
        "exception": 1,
        "interrupt": -2,
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path), *expected],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    codes = json.loads(done.stdout)
    assert codes == {ending: [code, code] for ending, code in expected.items()}, done.stderr
