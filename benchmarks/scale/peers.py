"""Descriptors and sockets of a rank that exchanges samples with others."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np

from penstock import limits
from penstock.cache.zeromq import KeyPair, ZeromqMember, ZeroMQPeer

from .costs import DESCRIPTORS
from .curves import Curve


def serve_peers(count: int, line: Connection) -> None:
    """Serve as so many nodes, in a process of their own, until told to end."""
    keys = [KeyPair.generate() for _ in range(count)]
    peers = [ZeroMQPeer(node + 1, "job", key) for node, key in enumerate(keys)]
    line.send([(peer.address, key.public) for peer, key in zip(peers, keys, strict=True)])
    asker = ZeromqMember(*line.recv())
    members = {0: asker} | {
        peer.node: ZeromqMember(peer.address, key.public)
        for peer, key in zip(peers, keys, strict=True)
    }
    for peer in peers:
        peer.meet(members)
    while not line.poll():
        for peer in peers:
            for request in peer.step(0).requests:
                peer.answer(request.number, [bytes(8)])
    for peer in peers:
        peer.close()


def count_descriptors(others: int) -> float:
    """Count the descriptors that a rank has open once it has asked so many nodes."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    served = context.Process(target=serve_peers, args=(others, there), daemon=True)
    served.start()
    own = KeyPair.generate()
    before = len(os.listdir("/proc/self/fd"))
    peer = ZeroMQPeer(0, "job", own)
    members = {0: ZeromqMember(peer.address, own.public)}
    for node, (address, public) in enumerate(here.recv()):
        members[node + 1] = ZeromqMember(address, public)
    here.send((peer.address, own.public))
    peer.meet(members)
    one, zero = np.ones(1, np.int64), np.zeros(1, np.int64)
    for node in range(1, others + 1):
        peer.submit(node, np.zeros(1, np.uint64), 8 * one, zero, [np.zeros(8, np.uint8)], zero)
    answered = 0
    while answered < others:
        answered += len(peer.step(10**8).completions)
    opened = len(os.listdir("/proc/self/fd")) - before
    here.send(None)
    served.join()
    peer.close()
    return float(opened)


def measure_peers(others: Sequence[int]) -> list[Curve]:
    """Curves of the descriptors of a rank that has asked ranks of so many hosts, and has been asked
    by as many, of which each has one connection here; and of its sockets: each has a descriptor,
    and each connection that the rank has made has one besides."""
    counted = [(number, count_descriptors(number)) for number in others]
    opened = tuple((number, descriptors + number) for number, descriptors in counted)
    sockets = tuple((number, descriptors - number) for number, descriptors in counted)
    told, most = "idle ones closed", limits.peer_sockets_max
    return [
        Curve("peers: descriptors", "hosts", "", 1, DESCRIPTORS, "a process", opened, (), told),
        Curve("peers: sockets", "hosts", "", 1, most, "a process", sockets, (), told),
    ]
