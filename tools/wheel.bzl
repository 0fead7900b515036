# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""The files of the wheel: what the package's libraries need at run time."""

load(":string_flag.bzl", "StringFlagInfo")

def _wheel_files_impl(ctx):
    version = ctx.actions.declare_file(ctx.label.name + "_version.py")
    ctx.actions.expand_template(
        template = ctx.file.version,
        output = version,
        substitutions = {
            '_version_suffix = ""': '_version_suffix = "{}"'.format(
                ctx.attr.version_suffix[StringFlagInfo].value,
            ),
            '__git_commit__ = ""': '__git_commit__ = "{}"'.format(
                ctx.attr.git_commit[StringFlagInfo].value,
            ),
        },
    )
    sources = {ctx.file.version.short_path: version}
    for dep in ctx.attr.deps:
        for file in dep[DefaultInfo].default_runfiles.files.to_list():
            # Every file of the package; a py_binary also brings the script
            # that starts it, which has no extension.
            if file.short_path.startswith(ctx.attr.package) and file.extension:
                sources.setdefault(file.short_path, file)
    manifest = ctx.actions.declare_file(ctx.label.name + ".manifest")
    ctx.actions.write(manifest, "".join([
        "{} {}\n".format(source.path, path)
        for path, source in sources.items()
    ]))
    tree = ctx.actions.declare_directory(ctx.label.name)
    ctx.actions.run_shell(
        inputs = sources.values() + [manifest],
        outputs = [tree],
        arguments = [manifest.path, tree.path],
        command = """
          while read -r source path; do
            install -D --mode=644 "$source" "$2/$path" || exit
          done <"$1"
        """,
        progress_message = "Collecting the files of the wheel",
    )
    return DefaultInfo(
        files = depset([tree]),
        runfiles = ctx.runfiles([tree]),
    )

wheel_files = rule(
    implementation = _wheel_files_impl,
    doc = "A directory with the files of a Python package, as in the wheel.",
    attrs = {
        "deps": attr.label_list(
            doc = "Libraries; what they need, and they alone, is taken along.",
        ),
        "package": attr.string(
            doc = "The package's path; files elsewhere are left out.",
        ),
        "version": attr.label(
            allow_single_file = True,
            doc = "version.py, whose empty strings the two flags fill in.",
        ),
        "version_suffix": attr.label(providers = [StringFlagInfo]),
        "git_commit": attr.label(providers = [StringFlagInfo]),
    },
)
