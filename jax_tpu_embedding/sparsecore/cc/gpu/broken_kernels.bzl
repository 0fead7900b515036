# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Kernels with a mistake, which the emulation has to find."""

def broken_kernel(name, src, function, right, wrong):
    """The source of a kernel in which `right` is `wrong`.

    Args:
      name: of the function that launches it; its source is `name`.cc.
      src: the source.
      function: the name that it has there.
      right: a part of the source.
      wrong: what stands in its place.
    """
    native.genrule(
        name = name + "_source",
        testonly = True,
        srcs = [
            src,
            "testing/break_kernel.py",
        ],
        outs = [name + ".cc"],
        cmd = ("python3 $(location testing/break_kernel.py) $(location {src})" +
               " $@ --function={function} --name={name} --right='{right}'" +
               " --wrong='{wrong}'").format(
            src = src,
            function = function,
            name = name,
            right = right,
            wrong = wrong,
        ),
    )
