"""Run the evidence behind the claims of the documentation, and render the pages that state it.

    ./dev evidence [part...]           delete the reports of these parts, run them, render the pages
    ./dev evidence --list              print the parts
    ./dev evidence --render            render the pages from the reports, without running anything
    ./dev evidence --check             fail if a page, a report or a cited test is not what it should be

A part (parts.py) is one command, the goals or figures it shows, and the files that these depend on. Running it writes
one report, `reports/PART.MACHINE.json` (reports.py): nothing on the pages comes from anywhere else. Reports made on
other machines are merged by copying their files into `reports/`; a report is never edited, and its seal detects that.
"""
