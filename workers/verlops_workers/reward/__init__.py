"""The reward server and its scorers.

server  the role: socket, beats, control          app      HTTP: routes, limits, token
scoring retries, isolation of bad items, states    pool     where a scorer runs, and how long
cache   scores that are known                      watch    metrics and the constant-score alarm
plug    config → scorer                            scorers  the built-in ones
"""
