# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""C++ that nvcc compiles."""

load(":string_flag.bzl", "StringFlagInfo")

# Takes the number of the PTX that nvcc kept, and nvcc with its arguments. Of what
# nvcc says of a source that it compiles, the user has no need. Its threads name
# temporary files by the number of the process, which sandboxes have in common:
# each has a folder of its own.
_COMPILE = """
  ptx=$1 usage=$2 kept=$(mktemp -d)
  shift 2
  trap 'rm -rf "$kept"' EXIT
  mkdir "$kept/tmp"
  export TMPDIR=$kept/tmp
  "$@" --keep --keep-dir "$kept" 2>"$usage" || { cat "$usage" >&2; exit 1; }
  cp "$kept"/*.ptx "$ptx"
"""

def _cuda_objects_impl(ctx):
    compilation = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    gpus = ctx.attr._gpus[StringFlagInfo].value.split(",")
    objects = []
    reports = []
    for source in ctx.files.srcs:
        name = source.basename[:-len(".cu.cc")]
        object = ctx.actions.declare_file(name + ".pic.o")
        ptx = ctx.actions.declare_file(name + ".ptx")
        usage = ctx.actions.declare_file(name + ".usage.txt")
        args = ctx.actions.args()
        args.add_all([ptx, usage, ctx.executable._nvcc])
        args.add_all(["-x", "cu", "-c", "-std=c++20", "-O3"])

        # a*b+c as two roundings, as on the CPU: the same bits.
        args.add("--fmad=false")

        # constexpr functions of the standard library are called in kernels.
        args.add_all(["--expt-relaxed-constexpr", "--extended-lambda"])
        args.add_all(["-Werror", "all-warnings"])

        # Members that only the emulation reads.
        args.add_all(["-diag-suppress", "177"])
        args.add_all(["-Xcompiler", "-fPIC,-ffp-contract=off,-fvisibility=hidden"])

        # One PTX, of the oldest GPU, from which there is machine code for each,
        # and which GPUs that are newer than all of them compile when they load
        # it. A PTX for each takes half as much time again; nothing here but
        # CUB's block sizes would differ.
        args.add("-gencode=arch=compute_{},code=[{}]".format(
            gpus[0],
            ",".join(["sm_" + gpu for gpu in gpus] + ["compute_" + gpus[0]]),
        ))

        # The machine code of the GPUs beside each other: the largest source
        # takes a minute and a half for one, and tests wait for it.
        args.add("--threads={}".format(len(gpus)))
        args.add("-Xptxas=-v")
        args.add_all(["-Xfatbin", "-compress-all"])
        args.add("-I.")
        args.add_all(compilation.includes, before_each = "-I")
        args.add_all(compilation.quote_includes, before_each = "-I")
        args.add_all(compilation.system_includes, before_each = "-isystem")
        args.add_all(["-o", object, source])
        ctx.actions.run_shell(
            command = _COMPILE,
            arguments = [args],
            inputs = depset(
                [source],
                transitive = [compilation.headers, depset(ctx.files._files)],
            ),
            tools = [ctx.executable._nvcc],
            outputs = [object, ptx, usage],
            use_default_shell_env = True,  # the host's compiler is on the PATH
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s for GPUs" % source.short_path,
        )
        objects.append(object)
        reports += [ptx, usage]
    return [
        DefaultInfo(files = depset(objects)),
        OutputGroupInfo(reports = depset(reports)),
    ]

cuda_objects = rule(
    implementation = _cuda_objects_impl,
    doc = """Objects of sources that nvcc compiles, to be srcs of a cc_library.

    The output group "reports" has the PTX of each, and what registers and local
    memory its kernels take on each GPU.
    """,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu.cc"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "_gpus": attr.label(default = "//tools:cuda"),
        "_nvcc": attr.label(
            default = "@cuda_compiler//:nvcc",
            executable = True,
            allow_single_file = True,
            cfg = "exec",
        ),
        "_files": attr.label(default = "@cuda_compiler//:files"),
    },
)
