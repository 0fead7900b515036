# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Writes a kernel's source with one mistake, under another name."""

import argparse
import pathlib


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("source", type=pathlib.Path)
  parser.add_argument("output", type=pathlib.Path)
  parser.add_argument("--function", required=True, help="that launches it")
  parser.add_argument("--name", required=True, help="that it gets")
  parser.add_argument("--right", required=True)
  parser.add_argument("--wrong", required=True)
  args = parser.parse_args()
  text = args.source.read_text()
  if text.count(args.right) != 1:
    parser.error(
        f"{args.source} has {text.count(args.right)} times {args.right!r},"
        " expected one. Write --right as the source has it."
    )
  text = text.replace(args.right, args.wrong)
  args.output.write_text(f"#define {args.function} {args.name}\n{text}")


if __name__ == "__main__":
  main()
