"""Writes the job files of Slurm and LSF from the templates that they share: python -m launch.make."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.implementations import implementation_title

HERE = Path(__file__).parent
JOB_NAMES = ("tf", "pt", "ptl", "jax")


def job_files() -> dict[Path, str]:
    """The job files: path -> text."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    files = {}
    for queue in ("slurm", "lsf"):
        for name in JOB_NAMES:
            one = name == "tf"
            processes = "one for each node, which serves all its GPUs" if one else "one for each GPU"
            fills = {"name": name, "title": implementation_title(name), "one": one, "processes": processes}
            text = templates.get_template("run.sh.j2").render(fills, slurm=queue == "slurm")
            files[HERE / queue / f"{name}.{queue}"] = text
        for name in ("compare", "sweep"):
            text = templates.get_template(f"{name}.sh.j2").render(slurm=queue == "slurm")
            files[HERE / queue / f"{name}.{queue}"] = text
    return files


if __name__ == "__main__":
    for path, text in job_files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
