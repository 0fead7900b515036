# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""C++ that nvcc compiles."""

# GPUs that get machine code: A100, H100 and H200, B200. Later ones compile the
# last one's PTX when they load it.
_ARCHITECTURES = ["80", "90", "100"]

def _cuda_objects_impl(ctx):
    compilation = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    objects = []
    for source in ctx.files.srcs:
        name = source.basename[:-len(".cu.cc")]
        object = ctx.actions.declare_file(name + ".pic.o")
        args = ctx.actions.args()
        args.add_all(["-x", "cu", "-c", "-std=c++20", "-O3"])

        # a*b+c as two roundings, as on the CPU: the same bits.
        args.add("--fmad=false")

        # constexpr functions of the standard library are called in kernels.
        args.add_all(["--expt-relaxed-constexpr", "--extended-lambda"])
        args.add_all(["-Werror", "all-warnings"])

        # Members that only the emulation reads.
        args.add_all(["-diag-suppress", "177"])
        args.add_all(["-Xcompiler", "-fPIC,-ffp-contract=off,-fvisibility=hidden"])
        for architecture in ctx.attr.architectures:
            args.add("-gencode=arch=compute_{0},code=sm_{0}".format(architecture))
        args.add("-gencode=arch=compute_{0},code=compute_{0}".format(
            ctx.attr.architectures[-1],
        ))
        args.add_all(["-Xfatbin", "-compress-all"])
        args.add("-I.")
        args.add_all(compilation.includes, before_each = "-I")
        args.add_all(compilation.quote_includes, before_each = "-I")
        args.add_all(compilation.system_includes, before_each = "-isystem")
        args.add_all(["-o", object, source])
        ctx.actions.run(
            executable = ctx.executable._nvcc,
            arguments = [args],
            inputs = depset(
                [source],
                transitive = [compilation.headers, depset(ctx.files._files)],
            ),
            outputs = [object],
            use_default_shell_env = True,  # the host's compiler is on the PATH
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s for GPUs" % source.short_path,
        )
        objects.append(object)
    return [DefaultInfo(files = depset(objects))]

cuda_objects = rule(
    implementation = _cuda_objects_impl,
    doc = "Objects of sources that nvcc compiles, to be srcs of a cc_library.",
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu.cc"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "architectures": attr.string_list(default = _ARCHITECTURES),
        "_nvcc": attr.label(
            default = "@cuda_compiler//:nvcc",
            executable = True,
            allow_single_file = True,
            cfg = "exec",
        ),
        "_files": attr.label(default = "@cuda_compiler//:files"),
    },
)
