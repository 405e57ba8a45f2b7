"""The only place in the benchmarks that looks inside Godwit; everything else imports the public API (a test checks it).

`names` lists the names of the product that benchmarks need and that have no public home. `row_timers` and `switched_off`
replace methods of the product while a measurement lasts, in the processes that run them: to see where the time of a row goes,
and what a feature costs that cannot be turned off. A change inside Godwit can break these modules and nothing else here.
"""
