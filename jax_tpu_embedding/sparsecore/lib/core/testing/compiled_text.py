# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""What the text of a compiled program says that it does with memory."""

import re


def copies(text: str, shape: str) -> list[str]:
  r"""Instructions that copy an array, at once or while others run.

  The start of a copy that others run beside gives a tuple, of what is copied to
  and from, so the shape may be anywhere in the type.

  Args:
    text: of the program, as_text() of what lowered.compile() returns.
    shape: of the array, a pattern such as r"f32\[8,4\]".
  """
  return re.findall(rf".* = [^=\n]*{shape}[^=\n]* copy(?:-start)?\(.*", text)
