"""`compare.py --profile N`: one run of each row with the framework's profiler, and its results in the report."""

from made_up import MadeUp, comparison

from common.record.profile import Profile, ProfiledOperation
from comparison.plan.jobs import make_variants
from comparison.run.side_runs import SideRunner, make_profiles, profile_path, read_profile
from comparison.show.report.page import write_report


class Launcher:
    """Records the programs that it should run; all of them succeed, except PyTorch's."""

    def run(self, groups, at_once, timeout, follower):
        self.programs = [program for group in groups for program in group]
        for program in self.programs:
            program.run_dir.mkdir(parents=True)
            if program.implementation != "pt":
                operations = [
                    ProfiledOperation(name=f"<conv {number}>", calls=6, seconds=number) for number in range(20)
                ]
                Profile.make(program.implementation, 11, 3, 0.6, operations).write(program.run_dir)


def test_a_comparison_profiles_each_row_once_in_a_run_of_its_own(tmp_path):
    summary = comparison(tmp_path, lambda job: MadeUp(), profile=3, repeats=3)
    assert {run.result.config.profile for run in summary.runs} == {None}  # no profiler in the measured runs
    said, launcher, request = [], Launcher(), summary.request
    variants = make_variants(request.options, request.config)
    runner = SideRunner(tmp_path, request, variants, said.append, launcher.run)
    make_profiles(runner, 3)
    assert said == ["profiling 3 steps of TensorFlow, PyTorch, Lightning"]
    assert {program.config.profile for program in launcher.programs} == {3}
    assert {program.config.max_steps for program in launcher.programs} == {39}
    make_profiles(runner, 3)
    assert [program.implementation for program in launcher.programs] == ["pt"]  # the other profiles exist already
    assert read_profile(tmp_path, {}, "pt") is None and profile_path({}, "pt tuned").name == "pt-tuned"
    write_report(summary)
    page = (tmp_path / "report.html").read_text()
    assert page.count("&lt;conv 19&gt;") == 2 and "&lt;conv 9&gt;" not in page  # ten operations of each profile
    assert 'href="profiles/tf/profile/trace.json.gz"' in page and "steps 11 to 13, 200.00 ms each" in page
