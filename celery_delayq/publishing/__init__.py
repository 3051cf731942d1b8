"""What an app sends: tasks, many at once, and remote control.

send_task   what `app.send_task` does with the options `unique` and `throttle`
bulk        apply_async_many: many tasks in a few round trips
template    what tasks have in common that differ only in time, arguments and id
hooks       whether a signal, event, route or override looks at each task as it is sent
results     Redis result backends keep no publisher waiting while their server is away
naive       warns of an eta without a time zone
control     gives an app its `app.control`
broadcast   that control: what revokes tasks also removes those that wait
revocation  removes waiting tasks, and announces it
"""
