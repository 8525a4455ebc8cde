"""Every error of the public names and faces, as a user reads it: call, class and first line.

A new error gets a row here, which is reviewed as whoever made the mistake would read it: what
happened, where, the value, and what to do. {d} is the folder of the files that `make_scene` makes;
"..." stands for words of a library.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
import penstock_bench as bench
import penstock_sim as sim
from penstock import checkpoint, convert, doctor, errors, order, sharing
from penstock.errors import (
    ChangedError,
    CollateError,
    DecodeError,
    FormatError,
    LimitError,
    MissingError,
    SidecarError,
    StateError,
    StorageError,
    UsageError,
)
from tests import warm

ERRORS: list[tuple[str, type[Exception], str]] = [
    # open: the place
    (
        'penstock.open("")',
        UsageError,
        "path is empty: name a file or a folder",
    ),
    (
        "penstock.open([])",
        UsageError,
        "path is []: give a path, or a list of them",
    ),
    (
        "penstock.open(3)",
        UsageError,
        "path is 3: give a path, or a list of them",
    ),
    (
        "penstock.open([d, 3])",
        UsageError,
        "path is 3: give a path",
    ),
    (
        'penstock.open("a\\0b")',
        UsageError,
        "the path '{d}/a\\x00b' holds a zero byte: no file name does, correct it",
    ),
    (
        'penstock.open("\\ud800")',
        UsageError,
        "path is '\\ud800': character 0 is a lone surrogate, which no file name has: give the "
        "name as os.fsdecode returns it, or as bytes",
    ),
    (
        'penstock.open(d / "none")',
        MissingError,
        "{d}/none does not exist: check the path, and that it is mounted",
    ),
    (
        'penstock.open(f"{d}/none-*.tar")',
        MissingError,
        "{d}/none-*.tar matches no files: check the pattern",
    ),
    (
        'penstock.open(d / "gone")',
        MissingError,
        "{d}/gone is a link to what does not exist: repair or remove the link",
    ),
    (
        'penstock.open(d / "loop")',
        StorageError,
        "{d}/loop is behind too many links: untangle them",
    ),
    (
        'penstock.open(d / "pipe")',
        UsageError,
        "{d}/pipe is neither a file nor a folder (mode 10644): copy it into one",
    ),
    (
        'penstock.open("s3://")',
        UsageError,
        "'s3://' names no bucket: use s3://bucket/name",
    ),
    (
        'penstock.open("hf://models/org/x")',
        UsageError,
        "'hf://models/org/x' is no data set of the hub: use hf://datasets/ORG/NAME@REVISION/PATH",
    ),
    (
        'penstock.open("ftp://host/x")',
        UsageError,
        "penstock does not read ftp:// URLs: use s3://, gs://, az://, http://, https:// or a path",
    ),
    (
        'penstock.open([d / "x.npy", d / "x.npy"])',
        UsageError,
        "{d}/x.npy is named twice: name it once",
    ),
    (
        'penstock.open(d / "x.npy", index=d / "none")',
        MissingError,
        "{d}/none does not exist: check the path, and that it is mounted",
    ),
    (
        'penstock.open(d / "x.npy", index=d / "raw")',
        SidecarError,
        "{d}/raw: not a sidecar: it starts with b'\\x00\\x01\\x02\\x03\\x04\\x05\\x06\\x07': "
        "rebuild it with `penstock index --force` on its data",
    ),
    (
        'penstock.open(d / "x.npy", index=3)',
        UsageError,
        "index is 3: give a path",
    ),
    (
        'penstock.open(d / "x.npy", mirrors=[d / "none"])',
        UsageError,
        "mirrors: {d}/none has none of the 1 files below {d}, such as 'x.npy' of 368 bytes: give "
        "the folder that holds copies of them, under the same names",
    ),
    (
        'penstock.open(d / "x.npy", mirrors=[3])',
        UsageError,
        "a mirror is 3: give a path",
    ),
    # images
    (
        'penstock.images.Resize(8)(b"\\xff\\xd8\\xff")',
        DecodeError,
        "an image: the JPEG is damaged at byte 3: the file ends inside its header: restore the "
        "file from a good copy, or leave the sample out",
    ),
    (
        "penstock.images.Resize(0)",
        UsageError,
        "Resize: size is 0: use a whole number from 1 to 16,384",
    ),
    (
        'penstock.images.Resize(8, dtype="int8")',
        UsageError,
        "Resize: dtype is 'int8': use one of uint8, float16, bfloat16, float32",
    ),
    (
        'penstock.images.Resize(8, dtype="float16", std=0)',
        UsageError,
        "Resize: std is 0: use numbers above 0",
    ),
    (
        "penstock.images.RandomResizedCrop(8, area=(0.5, 2))",
        UsageError,
        "RandomResizedCrop: area is 2: use a number from 1e-06 to 1",
    ),
    # open: the format
    (
        'penstock.open(d / "raw")',
        FormatError,
        "{d}/raw is of no format that penstock knows (it starts with "
        "b'\\x00\\x01\\x02\\x03\\x04\\x05\\x06\\x07'): for binary records give record_bytes=, or "
        "dtype= and shape=; else give format= (tree, listing, coco, voc, image_json, table, "
        "records, npy, lmdb, npz, mds, litdata, megatron, tokens, arrayrecord, tar, clip, jsonl, "
        "tfrecord, recordio, arrow, hdf5, zarr, parquet)",
    ),
    (
        'penstock.open(d / "raw", format="rcords")',
        UsageError,
        "format is 'rcords': did you mean 'records'? use one of tree, listing, coco, voc, "
        "image_json, table, records, npy, lmdb, npz, mds, litdata, megatron, tokens, arrayrecord, "
        "tar, clip, jsonl, tfrecord, recordio, arrow, hdf5, zarr, parquet",
    ),
    (
        'penstock.open(d / "raw", recordbytes=3)',
        UsageError,
        "no format takes recordbytes=: did you mean record_bytes=? `penstock formats` lists them",
    ),
    (
        'penstock.open(d / "x.npy", record_bytes=7)',
        UsageError,
        "{d}/x.npy is read as 'npy', which does not take record_bytes (it takes: none): leave "
        "that out, or give format=",
    ),
    (
        'penstock.open(d / "x.npy", window=3)',
        UsageError,
        "{d}/x.npy is read as 'npy', which does not take window (it takes: none): leave that out, "
        "or give format=",
    ),
    (
        'penstock.open(d / "x.npy", format="tree")',
        UsageError,
        "{d}/x.npy is a file, but format 'tree' is a folder of files; class sub-folders give "
        "labels: leave format= out to have it detected",
    ),
    (
        'penstock.open(d / "raw", record_bytes=0)',
        UsageError,
        "record_bytes is 0: use a whole number from 1 on",
    ),
    (
        'penstock.open(d / "raw", record_bytes=7)',
        FormatError,
        "{d}/raw has 240 bytes of records, which 7 does not divide: 2 bytes are left over; a "
        "record size that divides is 6 or 8; a header of 2 bytes would fit (header_bytes=)",
    ),
    (
        'penstock.open(d / "raw", record_bytes=8, header_bytes=-1)',
        UsageError,
        "header_bytes is -1: use a whole number from 0 on",
    ),
    (
        'penstock.open(d / "raw", record_bytes=8, header_bytes=999)',
        FormatError,
        "{d}/raw has 240 bytes, less than header_bytes=999: check header_bytes=",
    ),
    (
        'penstock.open(d / "raw", shape=(2,))',
        UsageError,
        "shape is (2,) without a dtype: give dtype= as well",
    ),
    (
        'penstock.open(d / "raw", dtype="x")',
        UsageError,
        "dtype is 'x', which numpy does not know: use such as 'uint8'",
    ),
    (
        'penstock.open(d / "raw", dtype=object)',
        UsageError,
        "dtype is object: use a plain number type, or record_bytes= for raw bytes",
    ),
    (
        'penstock.open(d / "raw", dtype="u1", shape=2.5)',
        UsageError,
        "shape is 2.5: use a whole number from 1 on",
    ),
    (
        'penstock.open(d / "raw", dtype="u1", shape=(1,) * 65)',
        FormatError,
        "{d}/raw: no array can hold a batch of field 'data', which has 65 dimensions (...): give "
        "a smaller shape, or leave the field out",
    ),
    (
        'penstock.open(d / "raw", dtype="u1", shape=(4,), record_bytes=5)',
        UsageError,
        "record_bytes is 5, but uint8 of shape (4,) has 4 bytes: give one of the two",
    ),
    (
        'penstock.open(d / "raw", format="tokens", dtype="u1")',
        UsageError,
        "flat tokens need a window or an end token, and not both: ...",
    ),
    (
        'penstock.open(d / "raw", format="tokens", dtype="u1", window=0)',
        UsageError,
        "window is 0: use a whole number from 1 on",
    ),
    (
        'penstock.open(d / "raw", format="tokens", dtype="c8", window=3)',
        UsageError,
        "dtype is 'c8': tokens are such as 'uint16'",
    ),
    (
        'penstock.open(d / "raw", format="npy")',
        FormatError,
        "{d}/raw is not an .npy file: it starts with b'\\x00\\x01\\x02\\x03\\x04\\x05\\x06\\x07': "
        "leave format= out",
    ),
    (
        'penstock.open(d / "raw", format="lmdb")',
        FormatError,
        "{d}/raw: at byte 0: not an LMDB environment: the first meta page has no magic number",
    ),
    (
        'penstock.open(d / "raw", format="tar")',
        FormatError,
        "{d}/raw: at byte 0: the file ends inside a header (240 of 512 bytes are there): it is "
        "truncated",
    ),
    (
        'penstock.open(d / "raw", format="tfrecord")',
        FormatError,
        "{d}/raw: at byte 8: the checksum of a record's length is 0x0b0a0908 and should be "
        "0x1af9ff31: this is no TFRecord file, or damaged",
    ),
    (
        'penstock.open(d / "raw", format="recordio")',
        FormatError,
        "{d}/raw: at byte 0: a record should begin here, with the magic 0xced7230a, and there is "
        "0x03020100: this is no RecordIO file",
    ),
    (
        'penstock.open(d / "raw", format="arrow")',
        FormatError,
        "{d}/raw: at byte 0: a message begins with b'\\x00\\x01\\x02\\x03', not with "
        "b'\\xff\\xff\\xff\\xff': the file is damaged, or older than Arrow 0.15; write it again",
    ),
    (
        'penstock.open(d / "raw", format="parquet")',
        FormatError,
        "{d}/raw: at byte 236: a Parquet file ends with PAR1, but this one does not: it is "
        "truncated",
    ),
    (
        'penstock.open(d / "raw", format="arrayrecord")',
        FormatError,
        "{d}/raw has 240 bytes, but an ArrayRecord file has a multiple of 65,536: it is "
        "truncated, or a plain Riegeli file, which has no footer: write it with the options "
        "'group_size:1,uncompressed', or anew with `penstock convert`",
    ),
    (
        'penstock.open(d / "raw", format="megatron")',
        MissingError,
        "{d}/raw.idx does not exist: check the path, and that it is mounted",
    ),
    (
        'penstock.open(d / "raw", format="npz")',
        FormatError,
        "{d}/raw: no end record at the end of a zip archive: it is truncated or damaged: save it "
        "again",
    ),
    (
        'penstock.open(d / "tree", format="mds")',
        FormatError,
        "{d}/tree has no index.json, which MDS shards come with: open the folder that has it",
    ),
    (
        'penstock.open(d / "tree", format="litdata")',
        FormatError,
        "{d}/tree has no index.json, which LitData chunks come with: open the folder that has it",
    ),
    (
        'penstock.open(d / "tree", format="zarr")',
        FormatError,
        "{d}/tree holds no arrays at its top: name some with fields=",
    ),
    (
        'penstock.open(d / "empty")',
        FormatError,
        "{d}/empty holds no files (hidden ones do not count): check the path",
    ),
    (
        'penstock.open(d / "tree", extensions=["png"])',
        FormatError,
        "{d}/tree holds no files with the extension .png (hidden ones do not count): check the "
        "path and extensions=",
    ),
    (
        'penstock.open(d / "tree", extensions=[])',
        UsageError,
        "extensions is []: use names such as ['.jpg', '.png']",
    ),
    (
        'penstock.open(d / "coco")',
        FormatError,
        "{d}/coco holds images (train2017/1.jpg) beside text (annotations/instances.json), as "
        "COCO does: it looks like samples with annotations, not like classes: open the folder of "
        "the samples alone; for labels, a text file with a path and a label on each line; or give "
        "extensions= with those of all samples, such as ['.jpg']",
    ),
    (
        'penstock.open(d / "masks")',
        FormatError,
        "{d}/masks holds the folders images and masks: it looks like samples with annotations, "
        "not like classes: open the folder of the samples alone; for labels, a text file with a "
        "path and a label on each line; or give extensions= with those of all samples, such as "
        "['.jpg']",
    ),
    (
        'penstock.open(d / "pairs")',
        FormatError,
        "{d}/pairs holds pairs such as 1.txt and 1.wav: it looks like samples with annotations, "
        "not like classes: open the folder of the samples alone; for labels, a text file with a "
        "path and a label on each line; or give extensions= with those of all samples, such as "
        "['.jpg']",
    ),
    (
        'penstock.open(d / "document.json")',
        FormatError,
        "{d}/document.json is JSON, which penstock does not read: if each line is an object, give "
        "format='jsonl'; else write its rows as such lines, those of a list by `jq -c '.[]'`",
    ),
    (
        'penstock.open(d / "document.json", format="jsonl")',
        FormatError,
        "{d}/document.json: at byte 0: one JSON document over several lines, where each line must "
        "be an object: write it anew, a list as by `jq -c '.[]'`",
    ),
    (
        'penstock.open(d / "cut.jsonl")',
        FormatError,
        "{d}/cut.jsonl: at byte 14: line 2 (blank ones not counted) has no newline at its end and "
        "is no JSON (Unterminated string starting at: line 1 column 2 (char 1)): the file was cut, "
        "or is still being written: restore it, or remove that line",
    ),
    (
        'penstock.open(d / "x.jsonl", fields=["txt"])',
        FormatError,
        "sample 0: {d}/x.jsonl at byte 0 (13 bytes): line 1 (blank ones not counted): it has no "
        "field 'txt' (did you mean 'text'?), but 'text': correct fields=; or give a value for such "
        "lines by defaults={'txt': ...}, or broken='mask'",
    ),
    (
        'penstock.open(d / "x.jsonl", fields=["text"], types={"text": "text"})',
        UsageError,
        "types has 'text' for 'text': use one of str, int, float, bool, ints, floats, any, bytes",
    ),
    (
        'penstock.open(d / "x.jsonl", fields=["__text"])',
        UsageError,
        "fields is ['__text']: give names, such as ['text', 'label'], or {field: name in the "
        "object}; none begins with '__'",
    ),
    (
        'penstock.open(d / "x.jsonl.gz", format="jsonl")',
        FormatError,
        "{d}/x.jsonl.gz: at byte 0: a member of gzip of more than 16 MiB of lines, of which none "
        "can be read without all before it. Cut it into small ones: `zcat x.jsonl.gz | split -C "
        "256K --filter=gzip - > x-frames.jsonl.gz` (or by bgzip); or have it unpacked once, into "
        "the cache, by unpack=True",
    ),
    (
        'penstock.open(d / "x.log.gz")',
        FormatError,
        "{d}/x.log.gz is a file compressed by gzip, which penstock does not read: `gunzip` it",
    ),
    (
        'penstock.open(d / "header.csv")',
        MissingError,
        "{d}/header.csv, line 1: 'path,label' names no file, and line 2 does: put # before it if "
        "it is a header, else correct its path",
    ),
    (
        'penstock.open(d / "table.csv")',
        MissingError,
        "{d}/table.csv, line 1: no file {d}/a,b nor {d}/a: a text file is read as a list of paths "
        "relative to its folder; put # before a line that names no file; or it is a table in text "
        "(CSV), which penstock does not read: write it as Parquet, by pyarrow.csv.read_csv and "
        "pyarrow.parquet.write_table; or, if a column names a file for each row, give that column, "
        "as by files='file_name'",
    ),
    (
        'penstock.open(d / "missing.txt")',
        MissingError,
        "{d}/missing.txt, line 1: no file {d}/none.jpg: a text file is read as a list of paths "
        "relative to its folder; put # before a line that names no file",
    ),
    (
        'penstock.open(d / "blank.txt")',
        FormatError,
        "{d}/blank.txt names no files: give a path on each line",
    ),
    (
        'penstock.open(d / "unlabelled.txt")',
        FormatError,
        "{d}/unlabelled.txt, line 2: no label, but the first line has one: 'b.jpg'",
    ),
    (
        'penstock.open(d / "a.jpg")',
        FormatError,
        "{d}/a.jpg is a single image, which penstock does not read: open the folder that it is "
        "in; for some images of a folder, or their labels, write their paths into a text file in "
        "that folder, one (and its label) on each line, and open that",
    ),
    (
        'penstock.open([d / "a.jpg", d / "b.jpg"])',
        FormatError,
        "{d}/a.jpg is a single image, which penstock does not read: open the folder that it is "
        "in; for some images of a folder, or their labels, write their paths into a text file in "
        "that folder, one (and its label) on each line, and open that",
    ),
    (
        'penstock.open([d / "a.jpg", d / "empty"])',
        FormatError,
        "{d}/empty is a folder without data.mdb, and of folders only LMDB environments can be "
        "opened together: open each by itself, and join them by penstock.mix; or list files",
    ),
    (
        'penstock.open(d / "x.pkl")',
        FormatError,
        "{d}/x.pkl is a pickle, which penstock does not read: it may run any program when it is "
        "loaded; where you trust it, load it by pickle.load, and write its arrays by numpy.save",
    ),
    (
        'penstock.open(d / "x.zip")',
        FormatError,
        "{d}/x.zip is a zip, 7-Zip or RAR archive, which penstock does not read: unpack it, and "
        "open the folder",
    ),
    (
        'penstock.open(d / "x.tar.gz")',
        FormatError,
        "{d}/x.tar.gz: at byte 0: a tar archive compressed by gzip, in which no sample has a "
        "place: `gunzip` it",
    ),
    (
        'penstock.open(d / "x.npz", fields=["b"])',
        UsageError,
        "{d}/x.npz has no column 'b': it has a",
    ),
    (
        'penstock.open(d / "x.npz", label="b")',
        UsageError,
        "{d}/x.npz has no column 'b': it has a",
    ),
    (
        'penstock.open(d / "cut.npy")',
        FormatError,
        "{d}/cut.npy: the header says 30 samples of 8 bytes, but 239 bytes follow it: the file is "
        "truncated, save it again",
    ),
    (
        'penstock.open(d / "object.npy")',
        FormatError,
        "{d}/object.npy holds pickled Python objects, which have no fixed place and can run code "
        "when read: save an array of numbers",
    ),
    # Dataset
    (
        "data[30]",
        IndexError,
        "sample 30 does not exist: there are 30",
    ),
    # Loader
    (
        "penstock.Loader(d)",
        UsageError,
        "dataset is a PosixPath: give what penstock.open() returns (penstock.torch.DataLoader "
        "also takes torch datasets)",
    ),
    (
        "penstock.Loader(data, 0)",
        UsageError,
        "batch_size is 0: use a whole number from 1 on",
    ),
    (
        "penstock.Loader(data, True)",
        UsageError,
        "batch_size is True: use a whole number from 1 on",
    ),
    (
        'penstock.Loader(data, "3")',
        UsageError,
        "batch_size is '3': use a whole number from 1 on",
    ),
    (
        "penstock.Loader(data, 10**30)",
        UsageError,
        "batch_size is 1000000000000000000000000000000: use a whole number from 1 to "
        "4,611,686,018,427,387,904",
    ),
    (
        "penstock.Loader(data, 4, global_batch_size=8)",
        UsageError,
        "batch_size and global_batch_size are both given: choose one",
    ),
    (
        "penstock.Loader(data, global_batch_size=0)",
        UsageError,
        "global_batch_size is 0: use a whole number from 1 on",
    ),
    (
        "penstock.Loader(data, seed=-1)",
        UsageError,
        "seed is -1: use a whole number from 0 on",
    ),
    (
        'penstock.Loader(data, shuffle="yes")',
        UsageError,
        "shuffle is 'yes': use one of exact, blocked, none, auto",
    ),
    (
        'penstock.Loader(data, shuffle="blocked", block=0)',
        UsageError,
        "block is 0: use a whole number from 1 on",
    ),
    (
        'penstock.Loader(data, shuffle="blocked", group=1 << 60)',
        UsageError,
        "block * group is 295147905179352825856: use at most 2^62",
    ),
    (
        "penstock.Loader(data, drop_last=1)",
        UsageError,
        "drop_last is 1: use True or False",
    ),
    (
        "penstock.Loader(data, pad=1)",
        UsageError,
        "pad is 1: use True or False",
    ),
    (
        "penstock.Loader(data, 2, drop_last=True, pad=True)",
        UsageError,
        "drop_last=True and pad=True exclude each other: choose one",
    ),
    (
        "penstock.Loader(data, 31, drop_last=True)",
        UsageError,
        "drop_last=True leaves no batch: 30 samples are less than one global batch of 31; lower "
        "batch_size or use drop_last=False",
    ),
    (
        "penstock.Loader(data, rank=0)",
        UsageError,
        "rank=0, world_size=None: give both or neither (neither takes them from torch.distributed "
        "or the launcher)",
    ),
    (
        "penstock.Place(2, 2)",
        UsageError,
        "rank 2 of world size 2 (from arguments) is not possible: use a rank in 0..world_size-1",
    ),
    (
        "penstock.Place(0, 2, readers=[5])",
        UsageError,
        "readers has 1 processes (5) and there are 2 shares: name all processes that iterate, from "
        "0 on",
    ),
    (
        "penstock.Place(0, 2, readers=4)",
        UsageError,
        "readers is 4: give the ranks of the processes that read",
    ),
    (
        "penstock.Loader(data, place=penstock.Place(0, 2), rank=0, world_size=2)",
        UsageError,
        "place, rank=0 and world_size=2 are given: use place=",
    ),
    (
        "penstock.Loader(data, place=(0, 2))",
        UsageError,
        "place is a tuple: give a penstock.Place, a torch DeviceMesh or a jax.sharding.Sharding",
    ),
    (
        'penstock.Loader(data, data_axes="dp")',
        UsageError,
        "data_axes is 'dp' and there is no mesh: give place= too",
    ),
    (
        'penstock.Loader(data, place=penstock.Place(0, 2), data_axes="dp")',
        UsageError,
        "data_axes is 'dp' and place a Place, without axes: leave data_axes out",
    ),
    (
        "penstock.Loader(data, check_peers=10)",
        UsageError,
        "check_peers=10 compares the processes of one data coordinate, and nothing says that there "
        "are several: give place= a mesh, a sharding, or Place(rank, world_size, readers=...)",
    ),
    (
        "penstock.Loader(data, place=penstock.Place(0, 1, readers=[0]), check_peers=0)",
        UsageError,
        "check_peers is 0: use a whole number from 1 on",
    ),
    (
        "penstock.Loader(data, rank=2, world_size=2)",
        UsageError,
        "rank 2 of world size 2 (from arguments) is not possible: use a rank in 0..world_size-1",
    ),
    (
        'penstock.Loader(data, rank="0", world_size=2)',
        UsageError,
        "rank is '0' (from arguments): use an integer",
    ),
    (
        "penstock.Loader(data, rank=0, world_size=31)",
        UsageError,
        "31 ranks share 30 samples: each rank needs at least one; use fewer ranks",
    ),
    (
        "penstock.Loader(data, 1 << 62, rank=0, world_size=2)",
        UsageError,
        "batch_size is 4611686018427387904 on 2 ranks: a global batch has at most 2^62 samples; "
        "lower batch_size",
    ),
    (
        'penstock.Loader(data, assignment="local")',
        UsageError,
        "assignment='local' deals samples to the hosts that keep them: give cache= too",
    ),
    (
        'penstock.Loader(data, assignment="x")',
        UsageError,
        "assignment is 'x': use one of strided, contiguous, local, balanced, or "
        "penstock.Balanced(...)",
    ),
    (
        "penstock.Loader(data, decode=3)",
        UsageError,
        "decode is 3: give a function",
    ),
    (
        "penstock.Loader(data, collate=list)",
        UsageError,
        "collate needs decode: without it a Batch of arrays is yielded",
    ),
    (
        "penstock.Loader(data, decode=len, collate=3)",
        UsageError,
        "collate is 3: give a function",
    ),
    (
        "penstock.Loader(data, decode=len, decode_threads=0)",
        UsageError,
        "decode_threads is 0: use a whole number from 1 to 4,096",
    ),
    (
        "penstock.Loader(data, decode=len, decode_threads=10**6)",
        UsageError,
        "decode_threads is 1000000: use a whole number from 1 to 4,096",
    ),
    (
        "penstock.Loader(data, cache=3)",
        UsageError,
        "cache is 3: give a penstock.Cache",
    ),
    (
        "penstock.Loader(data, budget=3)",
        UsageError,
        "budget is 3: give a penstock.Budget",
    ),
    (
        "penstock.Loader(data).set_epoch(-1)",
        UsageError,
        "epoch is -1: use a whole number from 0 on",
    ),
    (
        "penstock.Loader(data).load_state_dict({})",
        StateError,
        "this is no state of a penstock loader: it has [], not ['epoch', 'fingerprint', "
        "'global_batch', 'order', 'seed', 'step', 'version']; pass what state_dict() returned",
    ),
    (
        "penstock.Loader(data).load_state_dict(3)",
        StateError,
        "this is no state of a penstock loader: it has int, not ['epoch', 'fingerprint', "
        "'global_batch', 'order', 'seed', 'step', 'version']; pass what state_dict() returned",
    ),
    (
        "penstock.Loader(data, seed=1).load_state_dict(state)",
        StateError,
        "the state was saved with seed=0 but this loader has seed=1: pass the saved seed",
    ),
    (
        'penstock.Loader(data, shuffle="none").load_state_dict(state)',
        StateError,
        "the state was saved under the order 'mixfeistel8-1' but this loader has 'none-1': pass "
        "the same shuffle, block and group, the same weights, curriculum, packing and "
        "batch_tokens, and of a mixture the same weights, schedule, samples_per_epoch and "
        "drop_last",
    ),
    (
        "penstock.Loader(data, 7).load_state_dict(state)",
        StateError,
        "the state has global batches of 1 samples but this loader of 7: pass global_batch_size=1 "
        "(here: 1 ranks)",
    ),
    (
        "penstock.Loader(other).load_state_dict(state)",
        StateError,
        "the state is of other data: fingerprint '5276f36d561da8139310bf9f0ddfe420', here "
        "'3ce0c7e0d88836bce35bfe3b01624f7d'; open the dataset that the run was started on, "
        "and select from it what was selected then",
    ),
    (
        'penstock.Loader(data).load_state_dict(state | {"step": 99})',
        StateError,
        "the state's step is 99: it should be 0..30",
    ),
    (
        'penstock.Loader(data).load_state_dict(state | {"epoch": -1})',
        StateError,
        "the state's epoch is -1: it should be 0..4611686018427387904",
    ),
    # Loader, while iterating
    (
        "first(penstock.Loader(changed))",
        ChangedError,
        "step 0, sample 0: {d}/changed at byte 0 (8 bytes): {d}/changed is of another size or "
        "modification time since the data was indexed: `penstock index --force` it",
    ),
    (
        "first(penstock.Loader(vanished))",
        MissingError,
        "{d}/vanished does not exist (step 0, sample 0: {d}/vanished at byte 0 (8 bytes)): check "
        "the path, and that it is mounted",
    ),
    (
        "first(penstock.Loader(huge))",
        LimitError,
        "no memory for a batch of 8,796,093,022,208 bytes: lower batch_size; if it has one "
        "sample, cut that into several, or use a machine with more memory",
    ),
    (
        "changed[0]",
        ChangedError,
        "sample 0: {d}/changed at byte 0 (8 bytes): the file has 16 bytes and had 8 since the "
        "data was indexed: `penstock index --force` it",
    ),
    (
        "vanished[0]",
        ChangedError,
        "sample 0: {d}/vanished at byte 0 (8 bytes): the file vanished since the data was "
        "indexed: `penstock index --force` it",
    ),
    (
        "huge[0]",
        LimitError,
        "sample 0: {d}/huge at byte 0 (8,796,093,022,208 bytes): no memory for its "
        "8,796,093,022,208 bytes: cut it into several samples, or use a machine with more memory",
    ),
    (
        "first(penstock.Loader(data, 2, decode=unequal, decode_threads=1))",
        CollateError,
        "sample is float64 (12,) but float64 (23,) in the first sample of the batch: make decode "
        "return one shape, or give a collate function",
    ),
    # Budget
    (
        "penstock.Budget(threads=0)",
        UsageError,
        "Budget.threads is 0: use a whole number from 1 to 256",
    ),
    (
        "penstock.Budget(threads=257)",
        UsageError,
        "Budget.threads is 257: use a whole number from 1 to 256",
    ),
    (
        "penstock.Budget(requests=0)",
        UsageError,
        "Budget.requests is 0: use a whole number from 1 to 1,024",
    ),
    (
        "penstock.Budget(bytes_per_s=0)",
        UsageError,
        "Budget.bytes_per_s is 0: use None (unlimited) or a rate above 0",
    ),
    (
        'penstock.Budget(bytes_per_s=float("nan"))',
        UsageError,
        "Budget.bytes_per_s is nan: use None (unlimited) or a rate above 0",
    ),
    (
        "penstock.Budget(bytes_per_s=True)",
        UsageError,
        "Budget.bytes_per_s is True: use None (unlimited) or a rate above 0",
    ),
    (
        "penstock.Budget(cores=0)",
        UsageError,
        "Budget.cores is 0: use None (unlimited), or a number above 0, at most 256",
    ),
    (
        'penstock.Budget(cores="2")',
        UsageError,
        "Budget.cores is '2': use None (unlimited), or a number above 0, at most 256",
    ),
    (
        "penstock.Budget(readahead_bytes=0)",
        UsageError,
        "Budget.readahead_bytes is 0: use a whole number from 1 on",
    ),
    (
        "penstock.Budget(readahead_bytes=1 << 70)",
        UsageError,
        "Budget.readahead_bytes is 1180591620717411303424: use a whole number from 1 to "
        "1,125,899,906,842,624",
    ),
    (
        'penstock.Budget(io_uring="yes")',
        UsageError,
        "Budget.io_uring is 'yes': use one of required, auto, off",
    ),
    (
        'penstock.Budget(io_uring="required", pread="required")',
        UsageError,
        "Budget.io_uring and Budget.pread are both 'required': only one backend reads",
    ),
    (
        'penstock.Budget(io_uring="off", mmap="off", pread="off")',
        UsageError,
        "Budget.io_uring, mmap and pread are all 'off': something must read",
    ),
    (
        'penstock.Budget(mmap="required", direct="required")',
        UsageError,
        "Budget.mmap and Budget.direct are both 'required': a map reads through the page cache",
    ),
    (
        "penstock.Budget().replace(threads=0)",
        UsageError,
        "Budget.threads is 0: use a whole number from 1 to 256",
    ),
    # Cache
    (
        "penstock.Cache(ram_bytes=-1)",
        UsageError,
        "Cache.ram_bytes is -1: use a whole number from 0 on",
    ),
    (
        "penstock.Cache(ram_bytes=1.5)",
        UsageError,
        "Cache.ram_bytes is 1.5: use a whole number from 0 on",
    ),
    (
        "penstock.Cache(ram_bytes=0, disk_bytes=3)",
        UsageError,
        "Cache.disk_path is None and disk_bytes 3: give both or none",
    ),
    (
        'penstock.Cache(ram_bytes=0, disk_path="x")',
        UsageError,
        "Cache.disk_path is 'x' and disk_bytes 0: give both or none",
    ),
    (
        "penstock.Cache(ram_bytes=0, disk_path=3, disk_bytes=1)",
        UsageError,
        "Cache.disk_path is 3: give a path",
    ),
    (
        'penstock.Cache(ram_bytes=0, disk_path="x", disk_bytes=1 << 62)',
        UsageError,
        "Cache.disk_bytes is 4611686018427387904: use a whole number from 0 to 281,474,976,710,655",
    ),
    (
        "penstock.Cache(ram_bytes=1, cache_block_bytes=0)",
        UsageError,
        "Cache.cache_block_bytes is 0: use a whole number from 1 on",
    ),
    (
        "penstock.Cache(ram_bytes=1, replicas=1)",
        UsageError,
        "Cache.replicas is 1: use True or False",
    ),
    (
        'penstock.Cache(ram_bytes=1, peers="tcp")',
        UsageError,
        'Cache.peers is \'tcp\': use "auto", "zeromq" or "mpi"',
    ),
    # mix
    (
        "penstock.mix(3)",
        UsageError,
        "datasets is 3: give a list of (dataset, weight)",
    ),
    (
        "penstock.mix([])",
        UsageError,
        "there is nothing to mix: give at least one (dataset, weight)",
    ),
    (
        "penstock.mix([data])",
        UsageError,
        "datasets[0] is <penstock.Dataset '{d}/x.npy': 30 samples, 240 bytes, format npy>: give "
        "(dataset, weight)",
    ),
    (
        "penstock.mix([(d, 1)])",
        UsageError,
        "dataset 0 is a PosixPath: give what penstock.open() returns",
    ),
    (
        "penstock.mix([(data, -1)])",
        UsageError,
        "a weight is -1: use a number from 0 on",
    ),
    (
        "penstock.mix([(data, 0)])",
        UsageError,
        "weights are [0]: their sum must be above 0",
    ),
    (
        "penstock.mix([(data, 1), (data, 1e9)])",
        UsageError,
        "the weight 1.0 of dataset 0 is too small beside the others for one of 4096 slots: raise "
        "it, or use 0",
    ),
    (
        "penstock.mix([(data, 1)], samples_per_epoch=0)",
        UsageError,
        "samples_per_epoch is 0: use a whole number from 1 on",
    ),
    (
        "penstock.mix([(data, 1)], schedule=3)",
        UsageError,
        "schedule is 3: give a list of (start, weights)",
    ),
    (
        "penstock.mix([(data, 1)], schedule=[])",
        UsageError,
        "the schedule's starts are []: they must ascend from 0",
    ),
    (
        "penstock.mix([(data, 1)], schedule=[(1, [1])])",
        UsageError,
        "the schedule's starts are [1]: they must ascend from 0",
    ),
    (
        "penstock.mix([(data, 1)], schedule=[(0, [1, 2])])",
        UsageError,
        "the schedule has 2 weights from 0 on, and there are 1 datasets: give a weight for each",
    ),
    (
        'penstock.mix([(data, 1)], schedule_unit="epochs")',
        UsageError,
        "schedule_unit is 'epochs': use 'steps' or 'samples'",
    ),
    (
        "penstock.mix([(data, 1), (tree, 1)])",
        UsageError,
        "the fields of dataset 1 are [('data', '|u1', None)], those of dataset 0 [('data', '|u1', "
        "(8,))]: mix datasets of the same fields (name, dtype, shape), give them the same names by "
        "rename=, or a decode= for each",
    ),
    (
        "penstock.mix([(data, 1), (other, 1)])",
        UsageError,
        "the fields of dataset 1 are [('data', '<f4', (9,))], those of dataset 0 [('data', '|u1', "
        "(8,))]: mix datasets of the same fields (name, dtype, shape), give them the same names by "
        "rename=, or a decode= for each",
    ),
    # Order and rng
    (
        "penstock.Order(0, 0)",
        UsageError,
        "count is 0: use a whole number from 1 on",
    ),
    (
        "penstock.Order(9, -1)",
        UsageError,
        "seed is -1: use a whole number from 0 on",
    ),
    (
        "penstock.Order(9, 0, epoch=2.0)",
        UsageError,
        "epoch is 2.0: use a whole number from 0 on",
    ),
    (
        'penstock.Order(9, 0, shuffle="yes")',
        UsageError,
        "shuffle is 'yes': use one of exact, blocked, none",
    ),
    (
        'penstock.Order(9, 0, shuffle="blocked", block=1 << 40, group=1 << 40)',
        UsageError,
        "block * group is 1208925819614629174706176: use at most 2^62",
    ),
    (
        "penstock.Order(9, 0).samples([9])",
        UsageError,
        "position 9 is outside this order: use 0..8",
    ),
    (
        "penstock.Order(9, 0).samples([0.5])",
        UsageError,
        "positions are of type float64: use 64-bit integers",
    ),
    (
        "penstock.Order(9, 0).run(5, 5)",
        UsageError,
        "run(count) is 5: use a whole number from 0 to 4",
    ),
    (
        "penstock.rng(-1, 0, 0)",
        UsageError,
        "rng: seed is -1: use a whole number from 0 on",
    ),
    (
        'penstock.rng(0, 0, "x")',
        UsageError,
        "rng: sample is 'x': use a whole number from 0 on",
    ),
    (
        "penstock.rng(0, [1], 0)",
        UsageError,
        "rng: epoch is [1]: use a whole number from 0 on",
    ),
    # Index
    (
        'penstock.Index.load(d / "raw")',
        SidecarError,
        "{d}/raw: not a sidecar: it starts with b'\\x00\\x01\\x02\\x03\\x04\\x05\\x06\\x07': "
        "rebuild it with `penstock index --force` on its data",
    ),
    (
        "penstock.Index.load(cut_index)",
        SidecarError,
        "{d}/cut.penstock: truncated or damaged: it has 895 bytes, but 904 were written: rebuild "
        "it with `penstock index --force` on its data",
    ),
    (
        "data.index.extents(np.array([30]))",
        UsageError,
        "sample 30 does not exist: there are 30, from 0 on",
    ),
    # bench
    (
        "bench.read_workload(3)",
        UsageError,
        "source is 3: give a path",
    ),
    (
        'bench.read_workload("nothing")',
        UsageError,
        "there is no workload 'nothing': use the path of a .yaml file, or one of ...",
    ),
    (
        'bench.read_workload(d / "none.yaml")',
        UsageError,
        "cannot read workload {d}/none.yaml (No such file or directory): check the path",
    ),
    (
        'bench.read_workload(d / "cut.yaml")',
        UsageError,
        "{d}/cut.yaml:2: not YAML: did not find expected ',' or ']'",
    ),
    (
        'bench.read_workload(d / "list.yaml")',
        UsageError,
        "{d}/list.yaml:1: a workload is a mapping: begin with a section, such as dataset:",
    ),
    (
        'bench.read_workload(d / "odd.yaml")',
        UsageError,
        "{d}/odd.yaml:1: nonsense: unknown key 'nonsense'; use one of framework, model, "
        "workflow, storage, dataset, reader, train, evaluation, checkpoint, output, profiling, "
        "metric",
    ),
    (
        'bench.read_workload({"dataset": {"num_files_train": -1}})',
        UsageError,
        "workload: dataset.num_files_train: must be an integer >= 1, got -1",
    ),
    (
        'bench.read_workload({"dataset": {"format": "gif"}})',
        UsageError,
        "workload: dataset.format: 'gif' is not one of tfrecord, hdf5, csv, npz, npy, jpeg, "
        "png, indexed_binary, mmap_indexed_binary, synthetic, parquet, tar, lmdb",
    ),
    (
        'bench.read_workload({"reader": {"batch_size": "x"}})',
        UsageError,
        "workload: reader.batch_size: must be an integer >= 1, got string 'x'",
    ),
    (
        'bench.read_workload(None, ["nonsense"])',
        UsageError,
        "CLI: 'nonsense' has no value: write nonsense=value",
    ),
    (
        'bench.read_workload(None, ["++workload.nothing=1"])',
        UsageError,
        "CLI: nothing: unknown key 'nothing'; use one of framework, model, workflow, storage, "
        "dataset, reader, train, evaluation, checkpoint, output, profiling, metric",
    ),
    (
        "bench.read_record(3)",
        UsageError,
        "path is 3: give a path",
    ),
    (
        'bench.read_record(d / "none.json")',
        MissingError,
        "{d}/none.json does not exist: name a record.json, or its folder",
    ),
    (
        'bench.read_record(d / "cut.json")',
        FormatError,
        "{d}/cut.json is no JSON (Expecting property name enclosed in double quotes: line 1 "
        "column 2 (char 1)): name a record.json",
    ),
    (
        'bench.read_record(d / "odd.json")',
        FormatError,
        "{d}/odd.json is no record of penstock bench: it has no 'penstock_bench'; name the "
        "record.json of a run",
    ),
    (
        'bench.check("nothing", None)',
        UsageError,
        "--loader is 'nothing': use one of penstock, torch, grain, litdata, ffcv, webdataset, "
        "spdl, none, or module:function for a loader of your own",
    ),
    # sim
    (
        "sim.load_scenario(3)",
        UsageError,
        "source is 3: give a path",
    ),
    (
        'sim.load_scenario("nothing")',
        UsageError,
        "there is no scenario 'nothing': use one of ..., or the path of a .yaml file",
    ),
    (
        'sim.load_scenario(d / "none.yaml")',
        UsageError,
        "cannot read scenario {d}/none.yaml (No such file or directory): check the path",
    ),
    (
        'sim.load_scenario(d / "cut.yaml")',
        UsageError,
        "{d}/cut.yaml is not YAML that can be read (expected ',' or ']', but got '<stream end>', "
        "line 1): begin with name, data, training and system",
    ),
    (
        'sim.load_scenario(d / "list.yaml")',
        UsageError,
        "{d}/list.yaml holds list, not a mapping: begin with name, data, training and system",
    ),
    (
        'sim.load_scenario(d / "odd.yaml")',
        UsageError,
        "{d}/odd.yaml: name is missing: give it",
    ),
    (
        'sim.simulate(sim.load_scenario("s1"), "nothing")',
        UsageError,
        "policy is 'nothing': use one of naive, staging, deepio, "
        "deepio_opportunistic, parallel_staging, lbann_dynamic, lbann_preloading, "
        "locality_aware, nopfs, penstock, penstock_local, lower_bound, by_value, recent, fixed",
    ),
    (
        'sim.simulate(sim.load_scenario("s1"), "penstock", "odd")',
        UsageError,
        "model is 'odd': use one of corrected, parity, events",
    ),
    (
        "sim.record.load_run([])",
        UsageError,
        "there is no record of a rank: give what Loader.run_record() returned",
    ),
    (
        'sim.record.load_run([d / "none.json"])',
        UsageError,
        "cannot read record {d}/none.json (No such file or directory): give a file of JSON",
    ),
    (
        'sim.record.load_run([d / "cut.json"])',
        UsageError,
        "cannot read record {d}/cut.json (Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)): give a file of JSON",
    ),
    (
        'sim.record.load_run([d / "odd.json"])',
        UsageError,
        "{d}/odd.json is no record of a run: give what Loader.run_record() returned, as JSON",
    ),
    ('penstock.open("x.npy", format=[])', UsageError, "format is []: use one of ..."),
    (
        'penstock.open("tree", extensions=3)',
        UsageError,
        "extensions is 3: use names such as ['.jpg', '.png']",
    ),
    (
        'penstock.open("x.npy", mirrors=3)',
        UsageError,
        "mirrors is 3: give folders or URLs in a list",
    ),
    (
        'penstock.open("x.npy", progress=3)',
        UsageError,
        "progress is 3: give a function of a number of files",
    ),
    ("penstock.Cache(ram_bytes=1, host=3)", UsageError, "Cache.host is 3: give a text, or None"),
    (
        "penstock.Cache(ram_bytes=1, listen=3)",
        UsageError,
        "Cache.listen is 3: give a text, or None",
    ),
    (
        "penstock.Cache(ram_bytes=1, gather=3)",
        UsageError,
        "Cache.gather is 3: give a function of a text, which all ranks call",
    ),
    (
        'sim.simulate(3, "naive")',
        UsageError,
        "scenario is 3: give what penstock_sim.load_scenario returns",
    ),
    (
        'sim.simulate(sim.load_scenario("cosmoflow"), 3)',
        UsageError,
        "policy is 3: give the name of one",
    ),
    # metrics, traces, conversions, orders and folders of other types
    ("penstock.loader.serve(3)", UsageError, "loader is 3: give a loader of penstock"),
    (
        'penstock.loader.serve(penstock.Loader(data), port="x")',
        UsageError,
        "port is 'x': use a whole number from 0 on",
    ),
    (
        "penstock.loader.serve(penstock.Loader(data), host=3)",
        UsageError,
        "host is 3: give an address of this machine",
    ),
    ("penstock.loader.serve(penstock.Loader(data), name=3)", UsageError, "name is 3: give a text"),
    ('penstock.loader.trace(3, "t.json")', UsageError, "loader is 3: give a loader of penstock"),
    ("penstock.loader.trace(penstock.Loader(data), 3)", UsageError, "path is 3: give a path"),
    (
        'penstock.loader.trace(penstock.Loader(data), "t.json", steps="x")',
        UsageError,
        "steps is 'x': use a whole number from 1 on",
    ),
    ("penstock.loader.takes_views(3)", UsageError, "decode is 3: give a function of a sample"),
    (
        'convert.convert(data, "out", to="records", name=3)',
        UsageError,
        "name is 3: use letters, digits, '_', '-', '.', 100 at most",
    ),
    (
        'convert.convert(data, "out", to="records", fields=3)',
        UsageError,
        "fields is 3: give names of fields, in a list",
    ),
    (
        'convert.convert(data, "out", to="records", progress=3)',
        UsageError,
        "progress is 3: give a function of numbers of samples",
    ),
    (
        'convert.convert(data, "out", to="records", force="x")',
        UsageError,
        "force is 'x': use True or False",
    ),
    ("order.shuffle_quality(3)", UsageError, "order is 3: give a penstock.Order"),
    ("doctor.examine_folder(None)", UsageError, "path is None: give a path"),
    # sharing
    (
        'sharing.Upstream(3, bytes(32), "host", 1.0)',
        UsageError,
        "address is 3: give a penstock.sharing.Address",
    ),
    (
        'sharing.Upstream(sharing.Address("tcp://127.0.0.1:7"), 3, "host", 1.0)',
        UsageError,
        "key is 3: give what penstock.sharing.read_key returns",
    ),
    (
        'sharing.Upstream(sharing.Address("tcp://127.0.0.1:7"), bytes(32), 3, 1.0)',
        UsageError,
        "name is 3: give the name of this host",
    ),
    (
        'sharing.Upstream(sharing.Address("tcp://127.0.0.1:7"), bytes(32), "host", "x")',
        UsageError,
        "own_bytes_per_s is 'x': use a number, 1e-12 to 1e+18, or inf",
    ),
    (
        "sharing.Address(3)",
        UsageError,
        "address 3 is none: use such as tcp://storage-1:7077 or tcp://[fd00::1]:7077",
    ),
    (
        'sharing.Address("nowhere")',
        UsageError,
        "address 'nowhere' is none: use such as tcp://storage-1:7077 or tcp://[fd00::1]:7077",
    ),
    (
        'sharing.read_key(d / "none")',
        UsageError,
        "key file '{d}/none' cannot be read ([Errno 2] No such file or directory: '{d}/none'): "
        "make it with `(umask 077; openssl rand -hex 32 > {d}/none)`",
    ),
    (
        'sharing.read_key(d / "short.key")',
        UsageError,
        "key file '{d}/short.key' holds 5 bytes: use 16 to 4096; make it with `(umask 077; "
        "openssl rand -hex 32 > {d}/short.key)`",
    ),
    (
        'sharing.read_key(d / "open.key")',
        UsageError,
        "key file '{d}/open.key' is open to everybody (mode 0644): chmod 600, and use a new key",
    ),
    (
        "sharing.Resources(cores=0, bytes_per_s=1)",
        UsageError,
        "Resources.cores is 0: use a number, 1e-12 to 1e+18",
    ),
    (
        'sharing.Resources(cores="2", bytes_per_s=1)',
        UsageError,
        "Resources.cores is '2': use a number, 1e-12 to 1e+18",
    ),
    (
        "sharing.Resources(cores=2, bytes_per_s=-1)",
        UsageError,
        "Resources.bytes_per_s is -1: use a number, 1e-12 to 1e+18, or inf",
    ),
    (
        'sharing.Ledger(sharing.Resources(cores=2, bytes_per_s=1), "odd")',
        UsageError,
        "objective is 'odd': use one of samples, utilisation, makespan",
    ),
    (
        "sharing.Ledger(sharing.Resources(cores=2, bytes_per_s=1), floors=0)",
        UsageError,
        "floors is 0: use a part of the even split, 0.01 to 1",
    ),
    (
        'sharing.Broker(d / "b.sock", sharing.Ledger(sharing.Resources(cores=2, '
        'bytes_per_s=1)), group="no9")',
        UsageError,
        "group 'no9' is not known: use a name that `getent group` lists",
    ),
    (
        "sharing.TransferPermit(0)",
        UsageError,
        "bytes is 0: use a number, 1 to 1e+18",
    ),
    ('sharing.TransferPermit("x")', UsageError, "bytes is 'x': use a number, 1 to 1e+18"),
    ('sharing.TransferPermit(float("nan"))', UsageError, "bytes is nan: use a number, 1 to 1e+18"),
    (
        "sharing.TransferPermit(10, bytes_per_s=-1)",
        UsageError,
        "bytes_per_s is -1: use a number, 1 to 1e+18, or inf",
    ),
    ("sharing.TransferPermit(10, job=3)", UsageError, "job is 3: give the name of a job"),
    ("sharing.TransferPermit(10, path=3)", UsageError, "path is 3: give a path"),
    (
        'sharing.TransferPermit(10).wait("x")',
        UsageError,
        "bytes is 'x': use a number, 0, or 1e-12 to 1e+18",
    ),
    ("sharing.Ledger(3)", UsageError, "resources is 3: give penstock.sharing.Resources(cores=...)"),
    (
        'sharing.Ledger(sharing.Resources(cores=2), floors="x")',
        UsageError,
        "floors is 'x': use a part of the even split, 0.01 to 1",
    ),
    (
        "sharing.Broker(3, sharing.Ledger(sharing.Resources(cores=2)))",
        UsageError,
        "path is 3: give a path",
    ),
    ('sharing.Broker(d / "b.sock", 3)', UsageError, "ledger is 3: give a penstock.sharing.Ledger"),
    (
        'sharing.Broker(d / "b.sock", sharing.Ledger(sharing.Resources(cores=2)), group=3)',
        UsageError,
        "group is 3: give its name, or its number as a text",
    ),
    (
        'sharing.Broker(d / "b.sock", sharing.Ledger(sharing.Resources(cores=2)), listen=3)',
        UsageError,
        "listen is 3: give a penstock.sharing.Address and the key, of read_key",
    ),
    (
        'sharing.Broker(d / "b.sock", sharing.Ledger(sharing.Resources(cores=2)), upstream=3)',
        UsageError,
        "upstream is 3: give a penstock.sharing.Upstream",
    ),
    ("sharing.read_key(3)", UsageError, "key file is 3: give a path"),
    (
        "sharing.Address([])",
        UsageError,
        "address [] is none: use such as tcp://storage-1:7077 or tcp://[fd00::1]:7077",
    ),
    ("next(iter(sharing.watch_broker(3)))", UsageError, "path is 3: give a path"),
    # checkpoint, arguments of other types
    (
        'saves.save(1, {"a": 1}, loader=3)',
        UsageError,
        "loader is 3: give an object with state_dict, or such a state",
    ),
    ('saves.load(fall_back="x")', UsageError, "fall_back is 'x': use True or False"),
    (
        'checkpoint.Checkpoints(d / "c", gather=3)',
        UsageError,
        "gather is 3: give a function of a text, which all ranks call, or three",
    ),
    (
        "checkpoint.advise_interval(3, checkpoint.Failures(mtbf_s=1))",
        UsageError,
        "costs is 3: give a penstock.checkpoint.Costs",
    ),
    (
        "checkpoint.advise_interval(checkpoint.Costs(blocked_s=1, commit_s=1, step_s=1), 3)",
        UsageError,
        "failures is 3: give a penstock.checkpoint.Failures",
    ),
    (
        'next(iter(sharing.watch_broker(str(d / "none.sock"))))',
        UsageError,
        "no broker serves at {d}/none.sock: start one with `penstock broker`, or say with "
        "--socket where it is",
    ),
    # checkpoint
    (
        'checkpoint.Checkpoints("")',
        UsageError,
        "folder is empty: name a file or a folder",
    ),
    (
        "checkpoint.Checkpoints(3)",
        UsageError,
        "folder is 3: give a path",
    ),
    (
        'checkpoint.Checkpoints(d / "raw")',
        UsageError,
        "{d}/raw is a file: name a folder for the checkpoints",
    ),
    (
        'checkpoint.Checkpoints("ftp://host/x")',
        UsageError,
        "penstock does not read ftp:// URLs: use s3://, gs://, az://, http://, https:// or a path",
    ),
    (
        'checkpoint.Checkpoints("s3:/bucket/x")',
        UsageError,
        "s3:/bucket/x: write two slashes for a URL, or ./ before a folder's name",
    ),
    (
        'checkpoint.Checkpoints(d / "c", keep=0)',
        UsageError,
        "keep=0: keep 2 checkpoints or more",
    ),
    (
        'checkpoint.Checkpoints(d / "c", busy="never")',
        UsageError,
        "busy='never': use 'wait' or 'skip'",
    ),
    (
        'checkpoint.Checkpoints(d / "c", budget=3)',
        UsageError,
        "budget is 3: give a penstock.Budget",
    ),
    (
        'checkpoint.Checkpoints(d / "c", rank=0)',
        UsageError,
        "rank=0, world_size=None: give both or neither (neither takes them from "
        "torch.distributed or the launcher)",
    ),
    (
        'checkpoint.Checkpoints(d / "c", local=3)',
        UsageError,
        "LocalTier.path is 3: give a path",
    ),
    (
        'checkpoint.Checkpoints(d / "c", local=[])',
        UsageError,
        "local=[]: name one tier or more, or leave it out",
    ),
    (
        'checkpoint.Checkpoints(d / "c", local="s3://x/y")',
        UsageError,
        "s3://x/y is no folder: a tier is a folder of this host",
    ),
    (
        'checkpoint.LocalTier("/x", bytes=0)',
        UsageError,
        "LocalTier.bytes is 0: use None or a number above 0",
    ),
    (
        "saves.save(-1, {})",
        UsageError,
        "step is -1: use an integer from 0 on",
    ),
    (
        'saves.save("1", {})',
        UsageError,
        "step is '1': use an integer from 0 on",
    ),
    (
        'saves.save(1, {"w": object()})',
        UsageError,
        "state.w is of type builtins.object, which cannot be saved: make it of dicts, lists, "
        "tuples, numbers, strings, bytes, numpy arrays and torch tensors (save the "
        "state_dict() of an object)",
    ),
    (
        'saves.save(1, {"w": np.array([{}], object)})',
        UsageError,
        "state.w is a ndarray of object: only plain arrays of numbers, times and strings of a "
        "fixed length can be saved: convert it",
    ),
    (
        'saves.wait(until="never")',
        UsageError,
        "until='never': use 'committed' or 'held'",
    ),
    (
        "saves.wait(timeout_s=-1)",
        UsageError,
        "timeout_s=-1: use seconds from 0 on, or None",
    ),
    (
        "saves.load(7)",
        MissingError,
        "{d}/saves has no checkpoint of step 7: it has none",
    ),
    (
        "saves.attach(3)",
        UsageError,
        "int has no register_step_pre_hook: attach an optimizer of torch",
    ),
    (
        "saves.advice(3600)",
        UsageError,
        "no save has been committed yet: ask for advice after one",
    ),
    (
        "checkpoint.load(3)",
        UsageError,
        "folder is 3: give a path",
    ),
    (
        'checkpoint.load(d / "none")',
        MissingError,
        "{d}/none is not a folder: name the folder of the checkpoints",
    ),
    (
        'checkpoint.load(d / "saves")',
        MissingError,
        "there is no checkpoint in {d}/saves: save one first",
    ),
    (
        "checkpoint.Failures(mtbf_s=0, nodes=1)",
        UsageError,
        "Failures.mtbf_s is 0: use a number, 1e-12 to 1e+18",
    ),
    (
        "checkpoint.Costs(step_s=0, blocked_s=1, commit_s=1)",
        UsageError,
        "Costs.step_s is 0: use a number, 1e-12 to 1e+18",
    ),
    # convert
    (
        'convert.convert(3, d / "out", to="tar")',
        UsageError,
        "source is 3: give what penstock.open() returns",
    ),
    (
        'convert.convert(data, "", to="tar")',
        UsageError,
        "destination is empty: name a file or a folder",
    ),
    (
        'convert.convert(data, 3, to="tar")',
        UsageError,
        "destination is 3: give a path",
    ),
    (
        'convert.convert(data, "s3://bucket/x", to="tar")',
        UsageError,
        "destination is 's3://bucket/x': write to a folder, and copy it then",
    ),
    (
        'convert.convert(data, d / "raw", to="tar")',
        UsageError,
        "{d}/raw exists and is not a folder: choose another destination",
    ),
    (
        'convert.convert(data, d / "empty/out", to="zip")',
        UsageError,
        "to is 'zip': use one of tar, tfrecord, records, lmdb",
    ),
    (
        'convert.convert(data, d / "out", to="tar", shard_bytes=0)',
        UsageError,
        "shard_bytes is 0: use at least 1",
    ),
    (
        'convert.convert(data, d / "out", to="tar", shards=0)',
        UsageError,
        "shards is 0: use at least 1",
    ),
    (
        'convert.convert(data, d / "out", to="tar", shards=3, shard_bytes=9)',
        UsageError,
        "shard_bytes and shards are both given: choose one",
    ),
    (
        'convert.convert(data, d / "out", to="tar", shards=99)',
        UsageError,
        "shards is 99 and there are 30 samples: use fewer shards",
    ),
    (
        'convert.convert(data, d / "out", to="tar", shuffle=-1)',
        UsageError,
        "shuffle is -1: give a seed, an integer of 0..2^64-1",
    ),
    (
        'convert.convert(data, d / "out", to="tar", fields=["no"])',
        UsageError,
        "there is no field 'no': the fields are data",
    ),
    (
        'convert.convert(data, d / "out", to="tar", fields=[])',
        UsageError,
        "fields is []: name each field once",
    ),
    (
        'convert.convert(data, d / "out", to="tar", keys=3)',
        UsageError,
        "keys is 3: use one of names, numbers, both",
    ),
    (
        'convert.convert(data, d / "out", to="tar", raw=True)',
        UsageError,
        "raw applies to TFRecord files only: leave it out, or use to='tfrecord'",
    ),
    (
        'convert.convert(data, d / "out", to="tar", datum=True)',
        UsageError,
        "datum applies to LMDB only: leave it out, or use to='lmdb'",
    ),
    (
        'convert.convert(data, d / "out", to="lmdb", shards=2)',
        UsageError,
        "LMDB is one file: leave shard_bytes= and shards= out",
    ),
    (
        'convert.convert(data, d / "out", to="tar", name="a/b")',
        UsageError,
        "name is 'a/b': use letters, digits, '_', '-', '.', 100 at most",
    ),
]
"""The errors: a call, over the names of `make_scene`; its class; the first line of its message."""

TORCH_ERRORS: list[tuple[str, type[Exception], str]] = [
    (
        'DeviceLoader(data, 2, device="odd")',
        UsageError,
        "device is 'odd', which torch does not have here (...): use such as 'cuda:0' or 'cpu'",
    ),
    ("DataLoader(data, 0)", UsageError, "batch_size is 0: use a whole number from 1 on"),
    (
        'DataLoader(data, 2, shuffle="x")',
        UsageError,
        "shuffle is 'x': use True, False, 'exact', 'blocked', 'none', or, for what "
        "penstock.open() returns, 'auto'",
    ),
    (
        "DataLoader(data, 2, num_workers=-1)",
        ValueError,
        "num_workers is -1: use 0 (no workers) or more",
    ),
    (
        "DataLoader(data, 2, prefetch_factor=2)",
        ValueError,
        "prefetch_factor counts batches of each worker: it needs num_workers > 0",
    ),
    (
        "DataLoader(data, 2, timeout=-1)",
        ValueError,
        "timeout is -1: use seconds, or 0 to wait for ever",
    ),
    (
        "DataLoader(data, 2, sampler=[0], shuffle=True)",
        ValueError,
        "sampler and shuffle=True are both given: the sampler decides the order",
    ),
    (
        "DataLoader(data, 2, batch_sampler=[[0]], drop_last=True)",
        ValueError,
        "batch_sampler decides batches alone: leave out batch_size, shuffle, sampler and drop_last",
    ),
    (
        "DataLoader(data, 2, persistent_workers=True)",
        ValueError,
        "persistent_workers=True needs num_workers > 0",
    ),
    ("DataLoader(data, 2, collate_fn=3)", UsageError, "collate_fn is 3: give a function"),
    (
        "DataLoader([1, 2], num_workers=1, worker_init_fn=3)",
        UsageError,
        "worker_init_fn is 3: give a function",
    ),
    (
        "DataLoader(3)",
        UsageError,
        "dataset is 3: give what penstock.open() returns, or a dataset with __getitem__ and "
        "__len__",
    ),
    (
        "DataLoader(type('Numbers', (), {'__getitem__': int})())",
        UsageError,
        "dataset is a Numbers, which has no length: define __len__, or give a sampler",
    ),
    (
        "DataLoader([1, 2], generator=3)",
        UsageError,
        "generator is 3: give a torch.Generator, or seed= with a whole number",
    ),
    (
        "DataLoader([1, 2], sampler=3)",
        UsageError,
        "sampler is 3: give an iterable of sample numbers",
    ),
    (
        "DataLoader([1, 2], batch_sampler=3)",
        UsageError,
        "batch_sampler is 3: give an iterable of lists of sample numbers",
    ),
    (
        "DataLoader(data, 2).collate_fn([data[0]])",
        UsageError,
        "another loader was made of the attributes of a penstock.torch.DataLoader, without its "
        "decode, order and state: give penstock.torch.StepLoader to what rebuilds loaders "
        "(accelerate's skip_first_batches, Trainer), and leave out Ray's prepare_data_loader, "
        "which is not needed",
    ),
    (
        "penstock.composer.wrap([])",
        UsageError,
        "penstock.composer.wrap was given a list, which has no epochs and no state of penstock: "
        "give a penstock.Loader or a penstock.torch.DataLoader",
    ),
    (
        "penstock.megatron.iterator(DataLoader(data, 2), '/none', 7)",
        UsageError,
        "/none/iter_0000007 has no train_dataloader_dprank*.pt, the state of the loader at "
        "iteration 7: give the --dataloader-save of the run that wrote the checkpoint, or "
        "iteration=0 to begin the data anew",
    ),
    ("DeviceLoader(3)", UsageError, "dataset is a int: give what penstock.open() returns"),
    ("DeviceLoader(data, 0)", UsageError, "batch_size is 0: use a whole number from 1 on"),
    (
        "gpu.shuffle(3, 1)",
        UsageError,
        "x is a int: give a tensor (penstock.order.shuffle takes arrays)",
    ),
]
"""Errors of `penstock.torch`, some of which are torch's own classes, as users of torch expect."""

TORCH_PROGRAM = """
import sys
import penstock
from penstock.torch import DataLoader, DeviceLoader, gpu
data = penstock.open("x.npy", index="memory")
for call in sys.argv[1:]:
    try:
        eval(call)
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
    else:
        print("no error")
"""


ELSEWHERE = {
    "PenstockError": "never raised itself",
    "DataError": "never raised itself",
    "ForkError": "tests/loader/test_loader.py, in a child",
    "StalledError": "tests/checkpoint, behind storage that hangs",
    "WorkerError": "tests/torch/test_loader.py, with worker processes",
}
"""The classes without a row, and where they are tested."""


def make_scene(d: Path) -> dict[str, Any]:
    """Build the files and values that the calls use."""
    np.save(d / "x.npy", np.arange(240, dtype=np.uint8).reshape(30, 8))
    np.save(d / "y.npy", np.zeros((30, 9), np.float32))
    np.savez(d / "x.npz", a=np.zeros((2, 3)))
    np.save(d / "object.npy", np.array([{}], object), allow_pickle=True)
    whole = (d / "x.npy").read_bytes()
    contents: dict[str, str | bytes] = {
        "raw": bytes(range(240)),
        "cut.npy": whole[:-1],
        "a.jpg": b"\xff\xd8\xff",
        "b.jpg": b"\xff\xd8\xff",
        "x.pkl": b"\x80\x04]",
        "x.zip": b"PK\x05\x06",
        "x.tar.gz": gzip.compress(b""),
        "x.jsonl": '{"text": "a"}\n',
        "cut.jsonl": '{"text": "a"}\n{"te',
        "document.json": '[\n  {"text": "a"}\n]\n',
        "x.log.gz": gzip.compress(b"a"),
        "x.jsonl.gz": gzip.compress(bytes(17 << 20)),
        "header.csv": "path,label\na.jpg,1\n",
        "table.csv": "a,b\n1,2\n",
        "missing.txt": "none.jpg\n",
        "cut.yaml": "a: [1",
        "list.yaml": "- 1\n",
        "odd.yaml": "nonsense: 1\n",
        "cut.json": "{",
        "odd.json": '{"a": 1}',
        "short.key": "short",
        "open.key": "x" * 40,
        "blank.txt": "\n# nothing\n",
        "unlabelled.txt": "a.jpg 1\nb.jpg\n",
        "tree/cat/1.jpg": "1",
        "tree/dog/2.jpg": "22",
        "coco/annotations/instances.json": "{}",
        "coco/train2017/1.jpg": "1",
        "masks/images/1.png": "1",
        "masks/masks/1.png": "1",
        "pairs/1.wav": "1",
        "pairs/1.txt": "1",
        "changed": bytes(8),
        "vanished": bytes(8),
    }
    for name, content in contents.items():
        (d / name).parent.mkdir(parents=True, exist_ok=True)
        (d / name).write_bytes(content.encode() if isinstance(content, str) else content)
    (d / "open.key").chmod(0o644)
    (d / "short.key").chmod(0o600)
    (d / "empty").mkdir()
    (d / "gone").symlink_to("nowhere")
    (d / "loop").symlink_to("loop")
    os.mkfifo(d / "pipe")
    with (d / "huge").open("wb") as file:
        file.truncate(1 << 43)

    def opened(name: str, **options: Any) -> penstock.Dataset:
        return penstock.open(d / name, index="memory", **options)

    data = opened("x.npy")
    data.index.save(d / "x.penstock")
    (d / "cut.penstock").write_bytes((d / "x.penstock").read_bytes()[:-9])
    scene: dict[str, Any] = {
        "d": d,
        "np": np,
        "penstock": penstock,
        "first": first,
        "bench": bench,
        "checkpoint": checkpoint,
        "convert": convert,
        "doctor": doctor,
        "order": order,
        "sharing": sharing,
        "sim": sim,
        "saves": checkpoint.Checkpoints(d / "saves"),
        "data": data,
        "unequal": lambda sample: np.zeros(sample["__id__"]),
        "cut_index": d / "cut.penstock",
        "state": penstock.Loader(data).state_dict(),
        "other": opened("y.npy"),
        "tree": opened("tree"),
        "changed": opened("changed", record_bytes=8),
        "vanished": opened("vanished", record_bytes=8),
        "huge": opened("huge", record_bytes=1 << 43),
    }
    (d / "changed").write_bytes(bytes(16))
    (d / "vanished").unlink()
    return scene


def first(loader: penstock.Loader) -> Any:
    """Return the first batch of a loader that is closed afterwards."""
    try:
        return next(iter(loader))
    finally:
        loader.close()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_scene(tmp_path_factory.mktemp("errors"))


@pytest.mark.parametrize(("call", "kind", "line"), ERRORS, ids=[row[0] for row in ERRORS])
def test_error(
    call: str, kind: type[Exception], line: str, scene: dict[str, Any], monkeypatch: Any
) -> None:
    """The call raises exactly this class, with this first line, in one sentence for a terminal."""
    monkeypatch.chdir(scene["d"])
    with pytest.raises(kind) as caught:
        eval(call, dict(scene))
    assert type(caught.value) is kind
    said = str(caught.value).splitlines()[0].replace(str(scene["d"]), "{d}")
    wanted = re.escape(line).replace(re.escape("..."), ".*")
    assert re.fullmatch(wanted, said), said


def test_errors_of_torch(scene: dict[str, Any]) -> None:
    """Likewise for `penstock.torch`."""
    command = [sys.executable, "-c", TORCH_PROGRAM, *(call for call, _, _ in TORCH_ERRORS)]
    done = warm.run(command, cwd=scene["d"], capture_output=True, text=True, timeout=240)
    lines = [f"{kind.__name__} {line}" for _, kind, line in TORCH_ERRORS]
    wanted = "\n".join(map(re.escape, lines)).replace(re.escape("(...)"), r"\(.*\)")
    assert re.fullmatch(wanted, done.stdout.strip()), done.stdout + done.stderr


def test_every_class_has_a_row() -> None:
    """Each class of penstock's errors stands in the table, or the table says where it is."""
    rows = {kind.__name__ for _, kind, _ in ERRORS} - {"IndexError"}
    assert rows | ELSEWHERE.keys() == set(errors.__all__)
    assert not rows & ELSEWHERE.keys()


def test_each_error_says_what_to_do() -> None:
    """Behind what happened stands what to do, or what would be right; no full stop ends it."""
    for _, kind, line in ERRORS:
        assert kind is IndexError or re.search(r"[:;] \S", line.replace("{d}", "")), line
        assert not line.removesuffix("...").endswith("."), line
